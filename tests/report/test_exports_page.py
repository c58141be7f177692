"""The page on exports: its table is rendered from the document beside it, and covers every scheme.

`python tests/report/test_exports_page.py RUN ...` makes the document from the cards of these runs' exports; without
runs it prints the table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rpr.config.train import config_from_record
from rpr.export.ctranslate2_spec import unrepresentable
from rpr.model.positions import SCHEMES
from rpr.records.position import position_of
from rpr.records.record import read_record
from rpr.runs.model_config import transformer_config

FOLDER = Path(__file__).resolve().parents[2] / "sweeps" / "results" / "exports"
BEGIN, END = "<!-- table -->\n", "<!-- end -->\n"


def document(runs: list[Path]) -> list[dict[str, Any]]:
    """A row for each run: what its export's card says was compared, or why there is none."""
    rows = []
    for run in runs:
        record = read_record(run / "record.json")
        config = config_from_record(record.config)
        row: dict[str, Any] = {
            "positions": position_of(record).label,
            "sharing": config.position.sharing,
            "schemes": sorted({config.position.encoder.scheme, config.position.decoder.scheme}),
            "model": record.model_name,
            "steps": record.steps,
            "commit": record.git.commit,
            "refused": unrepresentable(transformer_config(config, 1000)),
        }
        card = run / "exports" / "ctranslate2" / "card.json"
        if row["refused"] is None:
            found = json.loads(card.read_text())
            row |= {"ctranslate2": found["versions"]["ctranslate2"], "int8_identical": found["int8_identical"]}
            row |= {
                name: found["parity"][name] for name in ("sentences", "identical", "largest_difference", "tolerance")
            }
        rows.append(row)
    return sorted(rows, key=lambda row: (row["refused"] is not None, row["schemes"], row["positions"]))


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| positions | greedy translations equal | largest difference of log p | int8 as float32 |",
        "|---|---:|---:|---:|",
    ]
    for row in rows:
        name = row["positions"] + (", shared by heads" if row["sharing"] == "shared_by_heads" else "")
        if row["refused"] is not None:
            lines.append(f"| {name} | refused: {row['refused'].partition(': ')[2].partition(';')[0]} | – | – |")
            continue
        lines.append(
            f"| {name} | {row['identical']} of {row['sentences']} | {row['largest_difference']:.1e} "
            f"| {row['int8_identical']:.1%} |"
        )
    return "\n".join(lines) + "\n"


def test_the_table_is_rendered_from_the_document() -> None:
    text = (FOLDER / "exports.md").read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == table(json.loads((FOLDER / "exports.json").read_text()))


def test_every_scheme_is_proven_or_refused() -> None:
    rows = json.loads((FOLDER / "exports.json").read_text())
    assert {scheme for row in rows for scheme in row["schemes"]} == set(SCHEMES)
    for row in rows:
        assert row["refused"] is not None or row["largest_difference"] <= row["tolerance"], row
        assert row["refused"] is not None or row["sentences"] == 200, row


if __name__ == "__main__":
    if sys.argv[1:]:
        rows = document([Path(run) for run in sys.argv[1:]])
        (FOLDER / "exports.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    print(table(json.loads((FOLDER / "exports.json").read_text())))
