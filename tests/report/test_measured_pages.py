"""The hand-written pages in sweeps/measured/ against the documents beside them."""

import re

import pytest

from rpr.model.positions import SCHEMES
from sweeps.measured.pages import FORMATS, MEASURED, PEERS, SPEEDS, TABLES, read


def test_checks_passed():
    for card in read("decoding/parity").values():
        proof = card["parity"]
        assert proof["identical"] + len(proof["near_ties"]) == proof["sentences"]
        assert proof["largest_difference"] <= proof["tolerance"]
    assert all(document["passed"] for document in read("decoding/verify").values())
    assert all(measured["finite_and_falling"] for path in PEERS for measured in read(path))
    assert SPEEDS and all(read(path)["git"]["dirty"] is False for path in SPEEDS), "measured on committed code"


NEWER = {"pope", "selective_rope"}  # than the measurements


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_every_scheme_is_verified_or_refused(architecture):
    rows = read(f"exports/{architecture}")
    assert {scheme for row in rows for scheme in row["schemes"]} == set(SCHEMES) - NEWER
    formats = FORMATS if architecture == "decoder_only" else ["ctranslate2"]
    for row, found in ((row, row[name]) for row in rows for name in formats):
        assert found["refused"] or found["largest_difference"] <= found["tolerance"], row
        assert found["refused"] or found["sentences"] == 200, row


@pytest.mark.parametrize("page, name", TABLES)
def test_tables_match_the_documents(page, name):
    texts = (MEASURED / page).read_text(encoding="utf-8"), TABLES[page, name]()
    text, table = (re.sub(r" *\| *", "|", one) for one in texts)  # without the blanks beside the bars
    assert table in text and f"{table}\n|" not in text, f"{name}: render it again"
