"""Whether the hooks of a scheme do what the interface says, tried on a few positions before training starts."""

# Shape suffixes: B batch, H heads, P positions, D head width, R rows of a table.

from __future__ import annotations

from typing import TYPE_CHECKING

from rpr.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from rpr.model.positions.scheme import Scheme, Site, Tables

_NEAR, _FAR = 5, 300  # two distances for which the tables must agree


def check_hooks(scheme: Scheme, site: Site) -> None:
    """As `_check`, of each part of a scheme."""
    for part in scheme.parts:
        _check(part, site)


def _check(scheme: Scheme, site: Site) -> None:
    """Raises ConfigError: a parameter that no hook uses, so that it is never trained; tables or prepared vectors of
    another shape than the interface's; tables that depend on max_distance, or prepared vectors that depend on other
    positions than their own, so that a translation depends on what is around it.
    """
    import torch

    from rpr.model.positions.scheme import Pairs

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        projections = scheme.projections(site)
        initial = {**projections, **scheme.parameters(site)}
        learned = {name: value.clone().float().requires_grad_() for name, value in initial.items()}
        given = torch.randn(2, 1, site.num_heads, _NEAR, site.d_head)
        x = torch.randn(1, _NEAR, site.d_model)
    used: list[Tensor] = []
    problem = None
    queries = None
    if projections:
        projected = {name: torch.nn.functional.linear(x, learned[name]) for name in projections}
        queries = scheme.distance_queries(projected, learned, site)
        problem = problem or _wrong_queries(queries, scheme, site)
        used += [] if queries is None else [queries]
        if scheme.has_key_bias:
            start = x.new_zeros(1, site.num_heads)
            bias = scheme.key_bias(projected, learned, site, start)
            used.append(bias)
            if bias.shape != (1, site.num_heads, _NEAR):
                problem = f"key_bias returns a shape of {list(bias.shape)}; it must be [B, H, P]"
            else:
                later = {name: part[:, 2:] for name, part in projected.items()}
                if _differ(scheme.key_bias(later, learned, site, bias[:, :, 1]), bias[:, :, 2:]):
                    problem = "key_bias depends on more than its own token and `before`; decoding goes token by token"
    if scheme.has_tables and problem is None:
        near, far = (scheme.distance_tables(learned, site, most, torch.device("cpu")) for most in (_NEAR, _FAR))
        problem = _wrong_tables(near, far, site, site.d_head if queries is None else queries.shape[3])
        used += [table for table in (*near, *far) if table is not None]
    if scheme.changes_queries and problem is None:
        positions = torch.arange(_NEAR)
        q, k = given
        prepared = scheme.prepare(q, k, positions, learned, site)
        problem = _wrong_vectors(prepared, scheme.prepare(q[:, :, 2:], k[:, :, 2:], positions[2:], learned, site), q)
        used += prepared
    if scheme.has_scores and problem is None:
        (q, k), at = given, torch.arange(_NEAR)
        scores, visible = q @ k.transpose(2, 3), torch.ones(_NEAR, _NEAR, dtype=torch.bool).tril()
        whole = scheme.scores(Pairs(scores, visible, q, at[:, None], at), learned, site)
        last = Pairs(scores[:, :, 3:4, :4], visible[3:4, :4], q[:, :, 3:4], at[3:4, None], at[:4])
        if whole.shape != scores.shape:
            problem = f"scores returns a shape of {list(whole.shape)}; it must keep [B, H, Q, K]"
        elif site.causal and _differ(whole[:, :, 3:4, :4], scheme.scores(last, learned, site)):
            problem = "scores depend on hidden keys or on the number of keys; use only `visible` ones and positions"
        used.append(whole)
    if problem is None and learned:
        outputs = [tensor.float().sum() for tensor in used if tensor.requires_grad]
        tensors = list(learned.values())
        gradients = torch.autograd.grad(outputs, tensors, allow_unused=True) if outputs else [None] * len(tensors)
        unused = [name for name, gradient in zip(learned, gradients, strict=True) if gradient is None]
        if unused:
            problem = f"the parameter {unused[0]!r} gets no gradient; use it in a hook, or remove it"
    if problem is not None:
        side = "decoder" if site.causal else "encoder"
        raise ConfigError(f"position.{side}: the scheme {scheme.scheme} of position={scheme.name}: {problem}")


def _wrong_queries(queries: Tensor | None, scheme: Scheme, site: Site) -> str | None:
    shape = None if queries is None else list(queries.shape)
    if shape is not None and (len(shape) != 4 or shape[:3] != [1, site.num_heads, _NEAR]):
        return f"distance_queries returns a shape of {shape}; it must be [B, H, P, X]"
    return None if shape is None or scheme.has_tables else "distance_queries needs the key tables of distance_tables"


def _wrong_tables(near: Tables, far: Tables, site: Site, width_of_keys: int) -> str | None:
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
                return (
                    f"distance_tables returns {name} of shape {list(table.shape)}; it must be {wanted} with H = "
                    f"{site.num_heads}, D = {(*rest, site.d_head)[0]} and an odd R, 2 max_distance + 1 or less"
                )
            distances = torch.arange(-_NEAR, _NEAR + 1).clamp(-(rows // 2), rows // 2)  # beyond: the outermost rows
            expanded.append(table.detach().float().index_select(dimension, distances + rows // 2))
        if len(expanded) == 1 or (expanded and _differ(*expanded)):
            return (
                f"distance_tables returns {name} that depend on max_distance, which differs from batch to batch; "
                "compute each row from its distance alone"
            )
    return None


def _wrong_vectors(prepared: tuple[Tensor, Tensor], of_later: tuple[Tensor, Tensor], given: Tensor) -> str | None:
    for name, vectors, later in zip(("queries", "keys"), prepared, of_later, strict=True):
        if vectors.shape != given.shape:
            return f"prepare returns {name} of shape {list(vectors.shape)}; it must keep [B, H, P, D]"
        if _differ(vectors[:, :, 2:], later):
            return (
                f"prepare returns {name} that depend on other positions than their own, but decoding caches them one "
                "by one; use only `positions`"
            )
    return None


def _differ(one: Tensor, other: Tensor) -> bool:
    """Beyond rounding, in float32."""
    import torch

    return not torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
