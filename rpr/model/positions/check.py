"""Whether the hooks of a scheme do what the interface says, tried on a few positions before training starts."""

# Shape suffixes: B batch, H heads, P positions, D head width, R rows of a table.

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rpr.errors import ConfigError, RprError

if TYPE_CHECKING:
    from torch import Tensor

    from rpr.model.positions.scheme import ByName, Scheme, Site

_BATCH, _LENGTH = 2, 5
_FAR = 300  # at least so far the tables are tried


def check_hooks(scheme: Scheme, site: Site, longest: int = 0) -> None:
    """Raises ConfigError: a parameter that no hook uses, so that it is never trained; a result of another shape than
    the interface's, or not finite; a table that depends on max_distance, up to twice the `longest` text, as decoding
    asks for; what depends on other positions than its own or on other rows of the batch, so that a translation depends
    on what is around it, or a score on what follows; a hook that fails.
    """
    for part in scheme.parts:
        try:
            problem = next(_problems(part, site, longest), None)
        except RprError:
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}"
            problem = f"{type(error).__name__}: {' '.join(str(error).split())} ({where})"
        if problem is not None:
            side = "decoder" if site.causal else "encoder"
            raise ConfigError(f"position.{side}: the scheme {part.scheme} of position={part.name}: {problem}")


def _problems(scheme: Scheme, site: Site, longest: int) -> Iterator[str]:
    import torch

    from rpr.model.layer_positions import LayerPositions

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        projections, parameters = scheme.projections(site), scheme.parameters(site)
        LayerPositions(scheme, site)  # raises for what cannot be a parameter, or its name
        initial = {**projections, **parameters}
        learned = {name: value.clone().float().requires_grad_() for name, value in initial.items()}
        q, k = torch.randn(2, _BATCH, site.num_heads, _LENGTH, site.d_head)
        x = torch.randn(_BATCH, _LENGTH, site.d_model)
        added_by = scheme.embeddings(site.d_model) if _overrides(scheme, "embeddings") else None
    for name in projections.keys() & parameters.keys():
        yield f"{name!r} is both a projection and a parameter; choose another name"
    for name, value in learned.items():
        yield from _not_finite(f"the initial value of {name!r}", value)
    used: list[Tensor] = []
    width = site.d_head
    if projections:
        projected = {name: torch.nn.functional.linear(x, learned[name]) for name in projections}
        if (queries := scheme.distance_queries(projected, learned, site)) is not None:
            width = queries.shape[-1]
        yield from _wrong_queries(scheme, site, projected, learned, used)
        yield from _wrong_key_bias(scheme, site, projected, learned, used)
    if scheme.has_tables:
        yield from _wrong_tables(scheme, site, learned, used, width, longest)
    if scheme.changes_queries:
        yield from _wrong_prepare(scheme, site, q, k, learned, used)
    if scheme.has_scores:
        yield from _wrong_scores(scheme, site, q, k, learned, used)
    if added_by is not None:
        learned |= added_by.named_parameters()
        yield from _wrong_embeddings(added_by.eval(), site, used)
    outputs = [tensor.float().sum() for tensor in used if tensor.requires_grad]
    tensors = list(learned.values())
    gradients = torch.autograd.grad(outputs, tensors, allow_unused=True) if outputs else [None] * len(tensors)
    for name, gradient in zip(learned, gradients, strict=True):
        if gradient is None:
            yield f"the parameter {name!r} gets no gradient; use it in a hook, or remove it"
        else:
            yield from _not_finite(f"the gradient of {name!r}", gradient)


def _overrides(scheme: Scheme, hook: str) -> bool:
    from rpr.model.positions.scheme import Scheme

    return getattr(type(scheme), hook) is not getattr(Scheme, hook)


def _wrong_queries(scheme: Scheme, site: Site, projected: ByName, learned: ByName, used: list[Tensor]) -> Iterator[str]:
    queries = scheme.distance_queries(projected, learned, site)
    if queries is None:
        return
    used.append(queries)
    if queries.dim() != 4 or queries.shape[:3] != (_BATCH, site.num_heads, _LENGTH):
        yield f"distance_queries returns a shape of {list(queries.shape)}; it must be [B, H, P, X]"
    if not scheme.has_tables or scheme.distance_tables(learned, site, _LENGTH, queries.device).keys is None:
        yield "distance_queries needs the key tables of distance_tables"
    yield from _not_finite("what distance_queries returns", queries)

    def alone(row: int, at: int) -> Tensor:
        given = scheme.distance_queries(_token(projected, row, at), learned, site)
        assert given is not None
        return given

    if _depends_on_others(alone, queries):
        yield "distance_queries depends on other positions than its own; decoding goes token by token"


def _wrong_key_bias(
    scheme: Scheme, site: Site, projected: ByName, learned: ByName, used: list[Tensor]
) -> Iterator[str]:
    if not scheme.has_key_bias:
        return
    start = next(iter(projected.values())).new_zeros(_BATCH, site.num_heads)
    bias = scheme.key_bias(projected, learned, site, start)
    used.append(bias)
    if bias.shape != (_BATCH, site.num_heads, _LENGTH):
        yield f"key_bias returns a shape of {list(bias.shape)}; it must be [B, H, P]"
    yield from _not_finite("what key_bias returns", bias)

    def alone(row: int, at: int) -> Tensor:
        before = bias[row : row + 1, :, at - 1] if at else start[:1]
        return scheme.key_bias(_token(projected, row, at), learned, site, before)

    if _depends_on_others(alone, bias):
        yield "key_bias depends on more than its own token and `before`; decoding goes token by token"


def _wrong_prepare(
    scheme: Scheme, site: Site, q: Tensor, k: Tensor, learned: ByName, used: list[Tensor]
) -> Iterator[str]:
    import torch

    positions = torch.arange(_LENGTH)
    prepared = scheme.prepare(q, k, positions, learned, site)
    if len(prepared) != 2:
        yield f"prepare returns {len(prepared)} values; it must return queries and keys"
    used += prepared
    for which, name in enumerate(("queries", "keys")):
        if prepared[which].shape != q.shape:
            yield f"prepare returns {name} of shape {list(prepared[which].shape)}; it must keep [B, H, P, D]"
        yield from _not_finite(f"{name} that prepare returns", prepared[which])

        def alone(row: int, at: int, which: int = which) -> Tensor:
            own_q, own_k = (vectors[row : row + 1, :, at : at + 1] for vectors in (q, k))
            return scheme.prepare(own_q, own_k, positions[at : at + 1], learned, site)[which]

        if _depends_on_others(alone, prepared[which]):
            yield (
                f"prepare returns {name} that depend on other positions than their own, but decoding caches them "
                "one by one; use only `positions`"
            )


def _wrong_scores(
    scheme: Scheme, site: Site, q: Tensor, k: Tensor, learned: ByName, used: list[Tensor]
) -> Iterator[str]:
    """Each query's row is tried with the keys that it sees alone: in an encoder those that are no padding."""
    import torch

    from rpr.model.positions.scheme import Pairs

    positions = torch.arange(_LENGTH)
    visible = torch.ones(_BATCH, 1, _LENGTH, _LENGTH, dtype=torch.bool)
    visible = visible.tril() if site.causal else visible & (positions < _LENGTH - 1)
    scores = q @ k.transpose(2, 3)
    whole = scheme.scores(Pairs(scores, visible, q, positions[:, None], positions), learned, site)
    used.append(whole)
    if whole.shape != scores.shape:
        yield f"scores returns a shape of {list(whole.shape)}; it must keep [B, H, Q, K]"
    for row in range(_BATCH):
        for at in range(_LENGTH):
            keys = int(visible[row, 0, at].sum())
            own = (slice(row, row + 1), slice(None), slice(at, at + 1))
            pairs = Pairs(
                scores[own][..., :keys],
                visible[own][..., :keys],
                q[own],
                positions[at : at + 1, None],
                positions[:keys],
            )
            expected = scheme.scores(pairs, learned, site)
            yield from _not_finite("what scores returns for visible keys", expected)
            if _differ(whole[own][..., :keys], expected):
                yield "scores depend on hidden keys or on the number of keys; use only `visible` ones and positions"


def _wrong_embeddings(added_by: Callable[..., Tensor], site: Site, used: list[Tensor]) -> Iterator[str]:
    import torch

    pieces = torch.arange(_BATCH * _LENGTH).view(_BATCH, _LENGTH) % 4
    added = added_by(0, pieces)
    used.append(added)
    if tuple(added.shape) not in [(_LENGTH, site.d_model), (_BATCH, _LENGTH, site.d_model)]:
        yield f"embeddings returns a shape of {list(added.shape)}; it must be [L, M] or [B, L, M]"
    yield from _not_finite("what embeddings returns", added)

    def alone(row: int, at: int) -> Tensor:
        return added_by(at, pieces[row : row + 1, at : at + 1]).expand(1, 1, site.d_model)[:, None]

    if _depends_on_others(alone, added.expand(_BATCH, _LENGTH, site.d_model)[:, None]):
        yield "embeddings depends on other tokens than its own; decoding goes token by token"


def _wrong_tables(
    scheme: Scheme, site: Site, learned: ByName, used: list[Tensor], width_of_keys: int, longest: int
) -> Iterator[str]:
    import torch

    from rpr.model.positions.scheme import Tables

    farthest = max(_FAR, 2 * longest)
    doubled = (_LENGTH * 2**power for power in range(farthest.bit_length()))
    reached = sorted({*(most for most in doubled if most < farthest), _FAR, farthest})
    by_distance = [scheme.distance_tables(learned, site, most, torch.device("cpu")) for most in reached]
    for given in by_distance:
        if not isinstance(given, Tables):
            yield f"distance_tables returns {type(given).__name__}; it must return Tables(keys, values, bias)"
    for name in Tables._fields:
        tables = [getattr(given, name) for given in by_distance]
        used += [table for table in tables if table is not None]
        rest = () if name == "bias" else (width_of_keys if name == "keys" else site.d_head,)
        yield from _wrong_table(name, dict(zip(reached, tables, strict=True)), rest, site)


def _wrong_table(name: str, tables: Mapping[int, Tensor | None], rest: tuple[int, ...], site: Site) -> Iterator[str]:
    """`tables` by max_distance; `rest` is the shape of a row."""
    of_bias = name == "bias"
    before = [(site.num_heads,)] if of_bias else [(), (site.num_heads,)]
    known: dict[int, Tensor] = {}  # rows by distance
    for most, table in tables.items():
        if table is None:
            continue
        dimension = table.dim() - 1 - len(rest)
        rows = table.shape[dimension] if dimension >= 0 else 0
        if rows % 2 == 0 or tuple(table.shape) not in [(*heads, rows, *rest) for heads in before]:
            wanted = "[H, R]" if of_bias else "[R, D] or [H, R, D]"
            yield (
                f"distance_tables returns {name} of shape {list(table.shape)}; it must be {wanted} with H = "
                f"{site.num_heads}, D = {(*rest, site.d_head)[0]} and an odd R, 2 max_distance + 1 or less"
            )
        half = rows // 2
        read = table.narrow(dimension, 0, half + 1) if site.causal else table  # not those of later keys
        yield from _not_finite(f"{name} that distance_tables returns", read)
        for distance in {0, *(sign * near for sign in (-1, 1) for other in tables for near in (other - 1, other))}:
            if abs(distance) > most or (site.causal and distance > 0):
                continue
            row = table.detach().float().select(dimension, max(-half, min(half, distance)) + half)
            if distance in known and _differ(row, known[distance]):
                yield (
                    f"distance_tables returns {name} that depend on max_distance, which differs from batch to batch; "
                    "compute each row from its distance alone"
                )
            known[distance] = row
    if any(table is None for table in tables.values()) and known:
        yield (
            f"distance_tables returns {name} that depend on max_distance, which differs from batch to batch; "
            "compute each row from its distance alone"
        )


def _token(projected: ByName, row: int, at: int) -> dict[str, Tensor]:
    return {name: part[row : row + 1, at : at + 1] for name, part in projected.items()}


def _depends_on_others(alone: Callable[[int, int], Tensor], whole: Tensor) -> bool:
    """Whether the result [B, H, P, ...] differs from that of each token alone, [1, H, 1, ...]."""
    return any(
        _differ(whole[row : row + 1, :, at : at + 1], alone(row, at)) for row in range(_BATCH) for at in range(_LENGTH)
    )


def _not_finite(what: str, values: Tensor) -> Iterator[str]:
    """Minus infinity hides a key."""
    if bool((values.isnan() | values.isposinf()).any()):
        yield f"{what} is not finite"


def _differ(result: Tensor, other: Tensor) -> bool:
    """Beyond rounding, in float32."""
    import torch

    return result.shape != other.shape or not torch.allclose(result, other, rtol=1e-3, atol=1e-4)
