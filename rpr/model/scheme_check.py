"""Whether the hooks of a scheme do what the interface says, tried on a few positions before training starts."""

# Shape suffixes: B batch, H heads, P positions, D head width, R rows of a table.

import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from rpr.errors import ConfigError, RprError
from rpr.model.equations import MASKED
from rpr.model.layer_positions import LayerPositions
from rpr.model.positions.scheme import ByName, Pairs, Scheme, Site, Tables

_BATCH, _LENGTH = 2, 5
_FAR = 300  # at least so far the tables are tried
# Each token alone, as slices of the batch and of the positions.
_TOKENS = [(slice(row, row + 1), slice(at, at + 1)) for row in range(_BATCH) for at in range(_LENGTH)]


def check_hooks(scheme: Scheme, site: Site, longest: int = 0) -> None:
    """Raises ConfigError: a parameter that no hook uses, so that it is never trained; a result of another shape than
    the interface's, or not finite; a query whose visible keys are all hidden, which would see others; a table that
    depends on max_distance, up to twice the `longest` text, as decoding asks for; what depends on other positions than
    its own or on other rows of the batch, so that a translation depends on what is around it, or a score on what
    follows; a hook that fails.
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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        projections, parameters = scheme.projections(site), scheme.parameters(site)
        LayerPositions(scheme, site)  # raises for what cannot be a parameter, or its name
        initial = {**projections, **parameters}
        learned = {name: value.clone().float().requires_grad_() for name, value in initial.items()}
        q, k = torch.randn(2, _BATCH, site.num_heads, _LENGTH, site.d_head)
        x = torch.randn(_BATCH, _LENGTH, site.d_model)
        overridden = scheme.has_own_embeddings
        added_by, rebuilt = (scheme.embeddings(site.d_model) if overridden else None for _ in range(2))
        is_setting = len(get_args(type(scheme).model_fields["absolute"].annotation)) > 1
        if added_by is not None and rebuilt is not None:
            rebuilt.load_state_dict(added_by.state_dict())  # as scoring builds a trained model
        if overridden and is_setting and scheme.absolute != "none":
            yield from _without_absolute(scheme, site)
    for name in projections.keys() & parameters.keys():
        yield f"{name!r} is both a projection and a parameter; choose another name"
    for name, value in learned.items():
        yield from _not_finite(f"the initial value of {name!r}", value)
    used: list[Tensor] = []
    queries = None
    if projections:
        projected = {name: F.linear(x, learned[name]) for name in projections}
        if (queries := scheme.distance_queries(projected, learned, site)) is not None:
            used.append(queries)
            yield from _wrong_queries(scheme, site, queries, projected, learned)
        if scheme.has_key_bias:
            yield from _wrong_key_bias(scheme, site, projected, learned, used)
    if scheme.has_tables or queries is not None:
        yield from _wrong_tables(scheme, site, queries, learned, used, longest)
    if scheme.changes_queries:
        yield from _wrong_prepare(scheme, site, q, k, learned, used)
    if scheme.has_scores:
        yield from _wrong_scores(scheme, site, q, k, learned, used)
    if added_by is not None and rebuilt is not None:
        learned |= added_by.named_parameters()
        yield from _wrong_embeddings(scheme, site, added_by.eval(), used)
        if _differ(*(module.eval()(0, torch.arange(_LENGTH)[None]) for module in (added_by, rebuilt))):
            yield "embeddings built again with the same parameters and buffers return other values; save what they draw"
    outputs = [tensor.float().sum() for tensor in used if tensor.requires_grad]
    tensors = list(learned.values())
    gradients = torch.autograd.grad(outputs, tensors, allow_unused=True) if outputs else [None] * len(tensors)
    for name, gradient in zip(learned, gradients, strict=True):
        if gradient is None:
            yield f"the parameter {name!r} gets no gradient; use it in a hook, or remove it"
        else:
            yield from _not_finite(f"the gradient of {name!r}", gradient)


def _wrong_queries(scheme: Scheme, site: Site, queries: Tensor, projected: ByName, learned: ByName) -> Iterator[str]:
    if queries.dim() != 4 or queries.shape[:3] != (_BATCH, site.num_heads, _LENGTH):
        yield f"distance_queries returns a shape of {list(queries.shape)}; it must be [B, H, P, X]"

    def alone(row: slice, at: slice) -> Tensor:
        given = scheme.distance_queries(_part(projected, row, at), learned, site)
        assert given is not None
        return given

    others = "distance_queries depends on other positions than its own; decoding goes token by token"
    yield from _wrong_tokens("what distance_queries returns", queries, alone, others)


def _wrong_key_bias(
    scheme: Scheme, site: Site, projected: ByName, learned: ByName, used: list[Tensor]
) -> Iterator[str]:
    start = next(iter(projected.values())).new_zeros(_BATCH, site.num_heads)
    bias = scheme.key_bias(projected, learned, site, start)
    used.append(bias)
    if bias.shape != (_BATCH, site.num_heads, _LENGTH):
        yield f"key_bias returns a shape of {list(bias.shape)}; it must be [B, H, P]"
    if bool((bias < MASKED / 2).any()):
        yield "key_bias returns minus infinity, or a number near it; return -1e4, which hides a key beside any other"

    def alone(row: slice, at: slice) -> Tensor:
        before = bias[row, :, at.start - 1] if at.start else start[row]
        return scheme.key_bias(_part(projected, row, at), learned, site, before)

    others = "key_bias depends on more than its own token and `before`; decoding goes token by token"
    yield from _wrong_tokens("what key_bias returns", bias, alone, others)


def _wrong_tables(
    scheme: Scheme, site: Site, queries: Tensor | None, learned: ByName, used: list[Tensor], longest: int
) -> Iterator[str]:
    farthest = max(_FAR, 2 * longest)
    doubled = (_LENGTH * 2**power for power in range(farthest.bit_length()))
    reached = sorted({*(most for most in doubled if most < farthest), _FAR, farthest})
    by_distance = [scheme.distance_tables(learned, site, most, torch.device("cpu")) for most in reached]
    for given in by_distance:
        if not isinstance(given, Tables):
            yield f"distance_tables returns {type(given).__name__}; it must return Tables(keys, values, bias)"
    if queries is not None and by_distance[0].keys is None:
        yield "distance_queries needs the key tables of distance_tables"
    width = site.d_head if queries is None else queries.shape[-1]
    last = by_distance[-1]._asdict()
    rows = {table.shape[-1 if name == "bias" else -2] for name, table in last.items() if table is not None}
    if scheme.random_positions and len(rows) > 1:
        yield (
            f"distance_tables returns tables of {' and '.join(map(str, sorted(rows)))} rows, but with random_positions "
            "one label selects a row of each; repeat the outermost rows of the shorter ones"
        )
    for name, rest in (("keys", (width,)), ("values", (site.d_head,)), ("bias", ())):
        tables = {most: getattr(given, name) for most, given in zip(reached, by_distance, strict=True)}
        used += [table for table in tables.values() if table is not None]
        yield from _wrong_table(name, tables, rest, site)


def _wrong_table(name: str, tables: Mapping[int, Tensor | None], rest: tuple[int, ...], site: Site) -> Iterator[str]:
    """`tables` by max_distance; `rest` is the shape of a row."""
    depends = (
        f"distance_tables returns {name} that depend on max_distance, which differs from batch to batch; compute each "
        "row from its distance alone"
    )
    known: dict[int, Tensor] = {}  # rows by distance
    for most, table in tables.items():
        if table is None:
            continue
        dimension = table.dim() - 1 - len(rest)
        rows = table.shape[dimension] if dimension >= 0 else 0
        of_heads = (site.num_heads, rows, *rest)
        if rows % 2 == 0 or tuple(table.shape) not in ([of_heads, of_heads[1:]] if rest else [of_heads]):
            wanted = "[R, D] or [H, R, D]" if rest else "[H, R]"
            yield (
                f"distance_tables returns {name} of shape {list(table.shape)}; it must be {wanted} with H = "
                f"{site.num_heads}, D = {(*rest, site.d_head)[0]} and an odd R: as many distances on either side of 0"
            )
        half = rows // 2
        read = table.narrow(dimension, 0, half + 1) if site.causal else table  # not those of later keys
        yield from _not_finite(f"{name} that distance_tables returns", read, hides=not rest)
        if not rest and bool((table[:, half] < MASKED / 2).any()):
            yield "distance_tables returns a bias that hides a token from itself; the first one sees no other"
        for distance in {0, *(sign * near for sign in (-1, 1) for other in tables for near in (other - 1, other))}:
            if abs(distance) > most or (site.causal and distance > 0):
                continue
            row = table.detach().float().select(dimension, max(-half, min(half, distance)) + half)
            if distance in known and _differ(row, known[distance]):
                yield depends
            known[distance] = row
    if known and any(table is None for table in tables.values()):
        yield depends


def _wrong_prepare(
    scheme: Scheme, site: Site, q: Tensor, k: Tensor, learned: ByName, used: list[Tensor]
) -> Iterator[str]:
    positions = torch.arange(_LENGTH)
    prepared = scheme.prepare(q, k, positions, learned, site)
    if len(prepared) != 2:
        yield f"prepare returns {len(prepared)} values; it must return queries and keys"
    used += prepared
    for which, name in enumerate(("queries", "keys")):
        if prepared[which].shape != q.shape:
            yield f"prepare returns {name} of shape {list(prepared[which].shape)}; it must keep [B, H, P, D]"

        def alone(row: slice, at: slice, which: int = which) -> Tensor:
            return scheme.prepare(q[row, :, at], k[row, :, at], positions[at], learned, site)[which]

        others = (
            f"prepare returns {name} that depend on other positions than their own, but decoding caches them one by "
            "one; use only `positions`"
        )
        yield from _wrong_tokens(f"{name} that prepare returns", prepared[which], alone, others)


def _wrong_scores(
    scheme: Scheme, site: Site, q: Tensor, k: Tensor, learned: ByName, used: list[Tensor]
) -> Iterator[str]:
    """Each query's row is tried with the keys that it sees alone: in an encoder those that are no padding."""
    positions = torch.arange(_LENGTH)
    visible = torch.ones(_BATCH, 1, _LENGTH, _LENGTH, dtype=torch.bool)
    visible = visible.tril() if site.causal else visible & (positions < _LENGTH - 1)
    scores = q @ k.transpose(2, 3)

    def changed(rows: slice, queries: slice, keys: slice) -> Tensor:
        given, seen = scores[rows, :, queries, keys], visible[rows, :, queries, keys]
        pairs = Pairs(given, seen, q[rows, :, queries], positions[queries, None], positions[keys])
        return scheme.scores(pairs, learned, site)

    whole = changed(slice(None), slice(None), slice(None))
    used.append(whole)
    if whole.shape != scores.shape:
        yield f"scores returns a shape of {list(whole.shape)}; it must keep [B, H, Q, K]"
    for row, at in _TOKENS:
        keys = slice(int(visible[row, 0, at].sum()))
        expected = changed(row, at, keys)
        yield from _not_finite("what scores returns for visible keys", expected, hides=True)
        if at.start < keys.stop and bool((expected < MASKED / 2).all(-1).any()):  # else the query is of padding
            yield "scores hides all visible keys of a query, which would see hidden ones; leave it its own key"
        if _differ(whole[row, :, at, keys], expected):
            yield "scores depend on hidden keys or on the number of keys; use only `visible` ones and positions"


def _wrong_embeddings(scheme: Scheme, site: Site, added_by: Callable[..., Tensor], used: list[Tensor]) -> Iterator[str]:
    pieces = torch.arange(_BATCH * _LENGTH).view(_BATCH, _LENGTH) % 4
    added = added_by(0, pieces)
    used.append(added)
    if tuple(added.shape) not in [(_LENGTH, site.d_model), (_BATCH, _LENGTH, site.d_model)]:
        yield f"embeddings returns a shape of {list(added.shape)}; it must be [L, M] or [B, L, M]"

    def alone(row: slice, at: slice) -> Tensor:
        return added_by(at.start, pieces[row, at]).expand(1, 1, site.d_model)[:, None]

    others = "embeddings depends on other tokens than its own; decoding goes token by token"
    whole = added.expand(_BATCH, _LENGTH, site.d_model)[:, None]
    yield from _wrong_tokens("what embeddings returns", whole, alone, others)
    if scheme.random_positions:
        drawn = torch.tensor([1, 2, 4])
        given = added_by(drawn, pieces[:, drawn]).expand(_BATCH, len(drawn), site.d_model)
        if _differ(given, whole[:, 0, drawn]):
            yield "embeddings, given all positions as a tensor, as random ones are, returns those of other positions"


def _without_absolute(scheme: Scheme, site: Site) -> Iterator[str]:
    pieces, added, held = torch.arange(_LENGTH)[None], [], []
    for of in (scheme, scheme.model_copy(update={"absolute": "none"})):
        torch.manual_seed(0)
        added_by = of.embeddings(site.d_model)
        added.append(torch.zeros(1) if added_by is None else added_by.eval()(0, pieces).float())
        held.append([] if added_by is None else [*added_by.state_dict()])  # a gate may be closed at first
    if torch.equal(*added) and held[0] == held[1]:
        yield (
            f"absolute={scheme.absolute} has no effect: its embeddings are those of absolute=none; leave it out, or "
            "add what super().embeddings(d_model) adds"
        )


def _part(projected: ByName, row: slice, at: slice) -> dict[str, Tensor]:
    return {name: part[row, at] for name, part in projected.items()}


def _wrong_tokens(what: str, whole: Tensor, alone: Callable[[slice, slice], Tensor], others: str) -> Iterator[str]:
    """Whether a result [B, H, P, ...] is finite, and that of each token alone, [1, H, 1, ...], or as `others` says."""
    yield from _not_finite(what, whole)
    if any(_differ(whole[row, :, at], alone(row, at)) for row, at in _TOKENS):
        yield others


def _not_finite(what: str, values: Tensor, hides: bool = False) -> Iterator[str]:
    """Of scores and biases of them, minus infinity `hides` a key; a product with it is not defined."""
    if bool((~values.isfinite() & ~(values.isneginf() & hides)).any()):
        yield f"{what} is not finite"


def _differ(result: Tensor, other: Tensor) -> bool:
    """Beyond rounding, in float32."""
    return result.shape != other.shape or not torch.allclose(result, other, rtol=1e-3, atol=1e-4)
