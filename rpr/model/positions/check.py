"""Whether the hooks of a scheme do what the interface says, tried on a few positions before training starts."""

# Shape suffixes: B batch, H heads, P positions, D head width, R rows of a table.

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rpr.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from rpr.model.positions.scheme import Scheme, Site, Tables

_NEAR, _FAR = 5, 300  # two distances for which the tables must agree


def check_hooks(scheme: Scheme, site: Site) -> None:
    """Raises ConfigError: a parameter that no hook uses, so that it is never trained; tables or prepared vectors of
    another shape than the interface's; tables that depend on max_distance, or prepared or added vectors that depend on
    other positions than their own, so that a translation depends on what is around it.
    """
    for part in scheme.parts:
        if (problem := next(_problems(part, site), None)) is not None:
            side = "decoder" if site.causal else "encoder"
            raise ConfigError(f"position.{side}: the scheme {part.scheme} of position={part.name}: {problem}")


def _problems(scheme: Scheme, site: Site) -> Iterator[str]:
    import torch

    from rpr.model.positions.scheme import Pairs, Scheme

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        projections = scheme.projections(site)
        initial = {**projections, **scheme.parameters(site)}
        learned = {name: value.clone().float().requires_grad_() for name, value in initial.items()}
        q, k = torch.randn(2, 1, site.num_heads, _NEAR, site.d_head)
        x = torch.randn(1, _NEAR, site.d_model)
        own_embeddings = type(scheme).embeddings is not Scheme.embeddings
        added_by = scheme.embeddings(site.d_model) if own_embeddings else None
    positions = torch.arange(_NEAR)
    used: list[Tensor] = []
    queries = None
    if projections:
        projected = {name: torch.nn.functional.linear(x, learned[name]) for name in projections}
        if (queries := scheme.distance_queries(projected, learned, site)) is not None:
            used.append(queries)
            if queries.dim() != 4 or queries.shape[:3] != (1, site.num_heads, _NEAR):
                yield f"distance_queries returns a shape of {list(queries.shape)}; it must be [B, H, P, X]"
            if not scheme.has_tables:
                yield "distance_queries needs the key tables of distance_tables"
        if scheme.has_key_bias:
            bias = scheme.key_bias(projected, learned, site, x.new_zeros(1, site.num_heads))
            used.append(bias)
            if bias.shape != (1, site.num_heads, _NEAR):
                yield f"key_bias returns a shape of {list(bias.shape)}; it must be [B, H, P]"
            later = {name: part[:, 2:] for name, part in projected.items()}
            if _differ(scheme.key_bias(later, learned, site, bias[:, :, 1]), bias[:, :, 2:]):
                yield "key_bias depends on more than its own token and `before`; decoding goes token by token"
    if scheme.has_tables:
        near, far = (scheme.distance_tables(learned, site, most, torch.device("cpu")) for most in (_NEAR, _FAR))
        yield from _wrong_tables(near, far, site, site.d_head if queries is None else queries.shape[3])
        used += [table for table in (*near, *far) if table is not None]
    if scheme.changes_queries:
        prepared = scheme.prepare(q, k, positions, learned, site)
        of_later = scheme.prepare(q[:, :, 2:], k[:, :, 2:], positions[2:], learned, site)
        used += prepared
        for name, vectors, later_vectors in zip(("queries", "keys"), prepared, of_later, strict=True):
            if vectors.shape != q.shape:
                yield f"prepare returns {name} of shape {list(vectors.shape)}; it must keep [B, H, P, D]"
            if _differ(vectors[:, :, 2:], later_vectors):
                yield (
                    f"prepare returns {name} that depend on other positions than their own, but decoding caches them "
                    "one by one; use only `positions`"
                )
    if scheme.has_scores:
        scores, visible = q @ k.transpose(2, 3), torch.ones(_NEAR, _NEAR, dtype=torch.bool).tril()
        whole = scheme.scores(Pairs(scores, visible, q, positions[:, None], positions), learned, site)
        used.append(whole)
        if whole.shape != scores.shape:
            yield f"scores returns a shape of {list(whole.shape)}; it must keep [B, H, Q, K]"
        last = Pairs(scores[:, :, 3:4, :4], visible[3:4, :4], q[:, :, 3:4], positions[3:4, None], positions[:4])
        if site.causal and _differ(whole[:, :, 3:4, :4], scheme.scores(last, learned, site)):
            yield "scores depend on hidden keys or on the number of keys; use only `visible` ones and positions"
    if added_by is not None:
        added_by.eval()
        pieces = torch.arange(2 * _NEAR).view(2, _NEAR) % 4
        with torch.no_grad():
            added, of_later_pieces = added_by(0, pieces), added_by(2, pieces[:, 2:])
        if tuple(added.shape) not in [(_NEAR, site.d_model), (2, _NEAR, site.d_model)]:
            yield f"embeddings returns a shape of {list(added.shape)}; it must be [L, M] or [B, L, M]"
        if _differ(added[..., 2:, :], of_later_pieces):
            yield "embeddings depends on other tokens than its own; decoding goes token by token"
    outputs = [tensor.float().sum() for tensor in used if tensor.requires_grad]
    tensors = list(learned.values())
    gradients = torch.autograd.grad(outputs, tensors, allow_unused=True) if outputs else [None] * len(tensors)
    for name, gradient in zip(learned, gradients, strict=True):
        if gradient is None:
            yield f"the parameter {name!r} gets no gradient; use it in a hook, or remove it"


def _wrong_tables(near: Tables, far: Tables, site: Site, width_of_keys: int) -> Iterator[str]:
    import torch

    for name, *pair in zip(near._fields, near, far, strict=True):
        of_bias = name == "bias"
        rest = () if of_bias else (width_of_keys if name == "keys" else site.d_head,)
        before = [(site.num_heads,)] if of_bias else [(), (site.num_heads,)]
        expanded = []
        for table in pair:
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
            distances = torch.arange(-_NEAR, _NEAR + 1).clamp(-(rows // 2), rows // 2)  # beyond: the outermost rows
            expanded.append(table.detach().float().index_select(dimension, distances + rows // 2))
        if len(expanded) == 1 or (expanded and _differ(*expanded)):
            yield (
                f"distance_tables returns {name} that depend on max_distance, which differs from batch to batch; "
                "compute each row from its distance alone"
            )


def _differ(result: Tensor, other: Tensor) -> bool:
    """Beyond rounding, in float32."""
    import torch

    return not torch.allclose(result, other, rtol=1e-3, atol=1e-4, equal_nan=True)
