"""The page of how preparation and batches grow with the corpus, against the documents beside it: its tables are
rendered from them here (`python tests/report/test_scale_page.py` prints them), and so is what 36 million pairs take.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SCALE = Path(__file__).resolve().parents[2] / "sweeps" / "results" / "scale"
EN_FR = 36_000_000  # about the pairs of WMT14 EN-FR


def documents(kind: str) -> list[dict[str, Any]]:
    """Of `prepare`, where the cache was built, or of `ready`, where it was there; by the number of pairs, ascending."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in SCALE.glob(f"{kind}-*.json")]
    return sorted(found, key=pairs)


def pairs(document: dict[str, Any]) -> int:
    return int(document["data"]["splits"]["train"]["pairs"])


def straight_on(points: list[tuple[float, float]], place: float) -> float:
    """The value at a place, on the line through two points."""
    (one, low), (other, high) = points
    return high + (place - other) * (high - low) / (other - one)


def preparation() -> str:
    found = documents("prepare")
    lines = [
        "| pairs | digests, s | all, s | CPU, s | peak memory, GB | of a worker, GB | cache, GB |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for document in found:
        build = document["build"]
        lines.append(
            f"| {pairs(document):,} | {document['digest_seconds']:.2f} | {document['seconds']:.0f} "
            f"| {document['cpu_seconds']:.0f} | {document['peak_bytes'] / 1e9:.2f} "
            f"| {build['worker_peak_bytes'] / 1e9:.2f} | {document['data']['bytes'] / 1e9:.2f} |"
        )
    digests, cpu, size = (
        straight_on([(pairs(document), value(document)) for document in found[-2:]], EN_FR)
        for value in (
            lambda document: document["digest_seconds"],
            lambda document: document["cpu_seconds"],
            lambda document: document["data"]["bytes"],
        )
    )
    seconds = cpu / found[-1]["cores"]
    lines.append(f"| {EN_FR:,} (straight on) | {digests:.1f} | {seconds:.0f} | {cpu:.0f} | | | {size / 1e9:.2f} |")
    return "\n".join(lines)


def start() -> str:
    found = documents("ready")
    lines = [
        "| pairs | imports, s | open, s | plan, s | first batch, s | order of an epoch, s | source and target tokens/s "
        "| padding | peak memory, GB |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for document in found:
        loader = document["loader"]
        lines.append(
            f"| {pairs(document):,} | {loader['import_seconds']:.1f} | {loader['open_seconds']:.2f} "
            f"| {loader['plan_seconds']:.2f} | {loader['first_batch_seconds']:.2f} | {loader['order_seconds']:.2f} "
            f"| {loader['tokens_per_second']:,.0f} | {loader['padding_waste']:.1%} | {loader['peak_bytes'] / 1e9:.2f} |"
        )
    copies = found[-1]["copies"]
    lines.append(
        f"| {copies['pairs']:,} (plan alone) | | | {copies['plan_seconds']:.2f} | | {copies['order_seconds']:.2f} | "
        f"| {copies['padding_waste']:.1%} | {copies['peak_bytes'] / 1e9:.2f} |"
    )
    return "\n".join(lines)


@pytest.mark.parametrize("table", [preparation, start], ids=lambda table: table.__name__)
def test_the_tables_are_rendered_from_the_documents(table: Any) -> None:
    page = (SCALE / "scale.md").read_text(encoding="utf-8")
    assert table() in page, f"render it again: python {Path(__file__).name}"


@pytest.mark.parametrize("kind", ["prepare", "ready"])
def test_from_a_hundred_thousand_to_four_and_a_half_million_pairs(kind: str) -> None:
    found = documents(kind)
    assert [round(pairs(document) / 1e5) for document in found] == [1, 5, 15, 45]
    assert all(document["git"]["dirty"] is False for document in found)
    assert {document["build"] is None for document in found} == {kind == "ready"}


@pytest.mark.parametrize("document", documents("prepare"), ids=lambda document: document["data"]["name"])
def test_preparing_keeps_what_is_promised(document: dict[str, Any]) -> None:
    assert max(document["peak_bytes"], document["build"]["worker_peak_bytes"]) < 1.5e9


@pytest.mark.parametrize("document", documents("ready"), ids=lambda document: document["data"]["name"])
def test_batches_keep_what_is_promised(document: dict[str, Any]) -> None:
    loader = document["loader"]
    assert max(part["peak_bytes"] for part in (document, loader, document["copies"] or loader)) < 1.5e9
    assert sum(loader[f"{part}_seconds"] for part in ("import", "open", "plan")) < 5
    assert sum(loader[f"{part}_seconds"] for part in ("import", "open", "plan", "first_batch")) < 10
    assert loader["tokens_per_second"] > 400_000, "20 times what model=small takes on two cores, source and target"
    assert loader["padding_waste"] < 0.08


def test_straight_on() -> None:
    assert straight_on([(1, 10), (3, 14)], 5) == 18


if __name__ == "__main__":
    print(preparation(), start(), sep="\n\n")
