"""The page on decoding: its tables are rendered from the documents beside it, and what docs/decoding.md says of them is
true.

`python tests/report/test_decoding_page.py` prints the tables.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rpr.records.scores import METRIC_NAMES

DECODING = Path(__file__).resolve().parents[2] / "sweeps" / "results" / "decoding"


def read(name: str) -> Any:
    return json.loads((DECODING / f"{name}.json").read_text(encoding="utf-8"))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def by_label(document: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for measured in document:
        found.setdefault(measured["label"], []).append(measured)
    return found


def speed(document: list[dict[str, Any]]) -> dict[str, float]:
    """Tokens a CPU second, the median over the rounds."""
    return {
        label: statistics.median(run["tokens_per_cpu_s"] for run in runs) for label, runs in by_label(document).items()
    }


def toolkits_table() -> str:
    document = read("toolkits")
    fastest = max(value for label, value in speed(document).items() if not label.startswith(("ours", "ct2")))
    rows = []
    for label, runs in by_label(document).items():
        speeds = [run["tokens_per_cpu_s"] for run in runs]
        middle = statistics.median(speeds)
        rows.append(
            [
                label,
                f"{runs[0]['version']} ({runs[0]['torch'].partition('+')[0]})"
                if runs[0]["torch"]
                else runs[0]["version"],
                f"{middle:,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})",
                f"{middle / fastest:.2f}",
            ]
        )
    return markdown(("", "version (torch)", "tokens a CPU second (min to max)", "to the fastest PyTorch toolkit"), rows)


def engines_table() -> str:
    rows = [
        [
            f"{run['engine']} {run['version']}",
            run["products"],
            str(run["threads"]),
            f"{statistics.median(run['cpu_seconds']):.2f}",
            f"{statistics.median(run['seconds']):.2f}",
            f"{run['tokens_per_cpu_s']:,.0f}",
            f"{run['tokens_per_s']:,.0f}",
            f"{run['sacrebleu']:.2f}",
        ]
        for run in read("engines")
    ]
    head = ("", "products", "threads", "CPU s", "s", "tokens a CPU second", "tokens/s", "sacreBLEU")
    return markdown(head, rows)


def scores_table() -> str:
    rows = []
    for name, document in read("scores").items():
        for score in document["scores"]:
            interval = score["interval"]
            rows.append(
                [
                    name,
                    f"{score['test_set']} ({score['num_sentences']:,})",
                    METRIC_NAMES[score["metric"]],
                    f"{score['score']:.2f}",
                    f"{interval['low']:.2f} to {interval['high']:.2f}",
                    "`" + score["signature"].replace("|", "\\|") + "`",
                ]
            )
    return markdown(("model", "test set (sentences)", "score", "", "95% interval", "signature"), rows)


def parity_table() -> str:
    rows = []
    for name, card in read("parity").items():
        proof = card["parity"]
        rows.append(
            [
                name,
                f"{proof['identical']} of {proof['sentences']} ({proof['split']})",
                f"{proof['largest_difference']:.1e}",
                f"{proof['tolerance']:.1e}",
                "" if card["int8_identical"] is None else f"{card['int8_identical']:.1%}",
            ]
        )
    head = ("export", "greedy translations identical", "log p differs by at most", "allowed", "int8 as float32")
    return markdown(head, rows)


def checks_table() -> str:
    rows = [
        [
            name,
            check["name"],
            check["outcome"],
            "" if check["difference"] is None else f"{check['difference']:.1e}",
            str(check["sentences"]),
        ]
        for name, document in read("verify").items()
        for check in document["checks"]
    ]
    return markdown(("model", "check", "outcome", "largest difference", "sentences"), rows)


TABLES = {
    "toolkits": toolkits_table,
    "engines": engines_table,
    "scores": scores_table,
    "parity": parity_table,
    "verify": checks_table,
}


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_rendered_from_the_documents(name: str) -> None:
    assert TABLES[name]() in (DECODING / "decoding.md").read_text(encoding="utf-8"), f"{name}: render it again"


def test_what_is_claimed_of_the_speed() -> None:
    """In exact float32 above 1.5 times the fastest PyTorch toolkit on the same batches."""
    speeds = speed(read("toolkits"))
    fastest = max(value for label, value in speeds.items() if not label.startswith(("ours", "ct2")))
    assert speeds["ours:positions=relative"] > 1.5 * fastest


def test_the_proofs_hold() -> None:
    for card in read("parity").values():
        proof = card["parity"]
        assert proof["identical"] + len(proof["near_ties"]) == proof["sentences"]
        assert proof["largest_difference"] <= proof["tolerance"]
    assert all(document["passed"] for document in read("verify").values())


if __name__ == "__main__":
    for name, table in TABLES.items():
        print(name, table(), sep="\n\n", end="\n\n")
