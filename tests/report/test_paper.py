"""The paper's figures, against a copy typed independently from the verified page (PAPER.md of this project)."""

from __future__ import annotations

from rpr import paper


def test_table_1():
    page = """
        base absolute 26.5 38.2
        base relative 26.8 38.7
        big absolute 27.9 41.2
        big relative 29.2 41.5
    """
    expected = {}
    for line in page.split("\n"):
        if line.strip():
            size, position, en_de, en_fr = line.split()
            expected |= {(size, position, "en_de"): float(en_de), (size, position, "en_fr"): float(en_fr)}
    assert dict(paper.TABLE1) == expected


def test_table_2_has_no_rows_that_the_paper_does_not_print():
    ks, figures = "0 1 2 4 16 64 256", "12.5 25.5 25.8 25.9 25.8 25.9 25.8"
    assert dict(paper.TABLE2) == dict(zip(map(int, ks.split()), map(float, figures.split()), strict=True))
    assert paper.TABLE2.get(8) is None
    assert paper.TABLE2.get(32) is None


def test_table_3_is_keyed_by_values_then_keys():
    values_only, keys_only = (True, False), (False, True)
    assert paper.TABLE3[values_only] == 25.3
    assert paper.TABLE3[keys_only] == 25.8
    assert (paper.TABLE3[True, True], paper.TABLE3[False, False]) == (25.8, 12.5)


def test_seven_percent():
    assert round(1 - paper.RELATIVE_SPEED, 2) == 0.07
