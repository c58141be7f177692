"""The page of measured speeds against the documents beside it: every table on it is rendered from one of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rpr.commands.bench import as_text

SPEED = Path(__file__).resolve().parents[2] / "sweeps" / "results" / "speed"
DOCUMENTS = sorted(SPEED.glob("*.json"))


def test_there_are_documents() -> None:
    assert DOCUMENTS


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_the_tables_are_rendered_from_the_documents(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["git"]["dirty"] is False
    page = (SPEED / "attention.md").read_text(encoding="utf-8")
    assert as_text(document) in page, f"{path.name}: render it again"
