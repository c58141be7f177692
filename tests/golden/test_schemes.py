"""Frozen: what the hooks of every choice of conf/position/ return, by the VERSION of its scheme. A change to these
values needs another VERSION, or runs trained before it would be scored with other equations.
"""

import json
from pathlib import Path

import pytest
import torch

from rpr.model.positions import Pairs, Site
from tests.shapes import scheme

FROZEN = json.loads(Path(__file__).with_name("schemes.json").read_text())


def summary(choice: str) -> dict[str, list[float]]:
    """Two numbers for each tensor that a hook returns, with fixed parameters, by hook and stack."""
    found: dict[str, list[float]] = {}

    def add(name: str, tensor: torch.Tensor) -> None:
        flat = tensor.detach().double().flatten()
        weights = torch.sin(torch.arange(len(flat), dtype=torch.float64))
        found[name] = [round(float(flat.sum()), 4), round(float((flat * weights).sum()), 4)]

    positions = scheme(choice)
    if len(positions.parts) > 1:
        add("layers", torch.tensor([positions.parts.index(one) for one in positions.of_layers(7)]))
        return found
    for causal in (False, True):
        site = Site(num_layers=2, num_heads=2, d_model=8, causal=causal)
        stack = "decoder" if causal else "encoder"
        learned = {
            name: torch.linspace(-1, 1, value.numel()).reshape(value.shape)
            for name, value in sorted({**positions.parameters(site), **positions.projections(site)}.items())
        }
        if positions.has_projections:
            x = torch.linspace(-1, 1, 48).reshape(1, 6, 8)
            projected = {name: x @ learned[name].T for name in positions.projections(site)}
            if (queries := positions.distance_queries(projected, learned, site)) is not None:
                add(f"{stack} distance queries", queries)
            if positions.has_key_bias:
                add(f"{stack} key bias", positions.key_bias(projected, learned, site, torch.ones(1, 2)))
        if positions.has_angles:
            x = torch.linspace(-1, 1, 8 * (6 + positions.HISTORY)).reshape(1, -1, 8)
            add(f"{stack} angles", positions.angles({"x": x}, learned, site, torch.ones(1, 2, 1)))
        if positions.has_scores:
            scores, at = torch.linspace(-1, 1, 72).reshape(1, 2, 6, 6), torch.arange(6)
            seen, q = torch.ones(6, 6).tril().bool(), torch.linspace(-1, 1, 48).reshape(1, 2, 6, 4)
            add(f"{stack} scores", positions.scores(Pairs(scores, seen, q, at[:, None], at), learned, site))
        if positions.has_tables:
            for name, table in positions.distance_tables(learned, site, 6, torch.device("cpu"))._asdict().items():
                if table is not None:
                    add(f"{stack} {name}", table)
        if positions.changes_queries:
            q, k = torch.linspace(-1, 1, 96).reshape(2, 1, 2, 6, 4)
            for name, vectors in zip(
                ("queries", "keys"), positions.prepare(q, k, torch.arange(6), learned, site), strict=True
            ):
                add(f"{stack} prepared {name}", vectors)
    if (module := positions.embeddings(8)) is not None and not list(module.parameters()):
        add("embeddings", module.eval()(0, torch.zeros(1, 6, dtype=torch.long)))
    return found


@pytest.mark.parametrize("choice", FROZEN)
def test_hooks_return_what_they_did_under_this_version(choice):
    frozen, now = FROZEN[choice], summary(choice)
    assert frozen["version"] == scheme(choice).VERSION, f"freeze {now} with the new version"
    assert now.keys() == frozen["values"].keys()
    for name, values in now.items():
        assert values == pytest.approx(frozen["values"][name], rel=1e-3, abs=1e-3), f"raise VERSION: {name} has changed"
