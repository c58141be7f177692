"""Sample translations: which sentences a report shows."""

import pytest

from rpr.report.page import samples
from tests.fake_records import fake_record
from tests.report.helpers import group_of


@pytest.fixture
def files(tmp_path):
    def path_of(run):
        return tmp_path / run.run_id / "record.json"

    def write(run, split="test", lines=6, source="source", hypothesis="hypothesis"):
        for kind, text in (("sources", source), ("references", "reference"), ("hypotheses", hypothesis)):
            file = path_of(run).with_name(f"{split}.{kind}.txt")
            file.parent.mkdir(exist_ok=True)
            file.write_text("".join(f"{text} {n}\n" for n in range(1, lines + 1)))

    return path_of, write


def test_lines_are_evenly_spaced_from_the_first_finished_run(files):
    path_of, write = files
    failed, first, second = fake_record(seed=1, status="failed"), fake_record(seed=2), fake_record(seed=3)
    odd = "first\u2028and\x0bsame"  # separators that do not end a line
    for run, text in ((failed, "failed"), (first, odd), (second, "second")):
        write(run, hypothesis=text)
    write(first, split="long", lines=2, hypothesis="long")
    found = samples(group_of([failed, first, second]), path_of)
    # Of 6 lines one from the middle of each third, of 2 lines both.
    places = [("test", 2), ("test", 4), ("test", 6), ("long", 1), ("long", 2)]
    assert [(one.split, one.number) for one in found] == places
    assert found[0].hypotheses == (("relative, k = 16", f"{odd} 2"),)
    assert found[0].source == "source 2" and found[0].reference == "reference 2"


def test_translations_of_other_sources_or_of_other_lengths_are_not_shown(files):
    path_of, write = files
    runs = [fake_record("absolute"), fake_record("none"), fake_record("relative", 2), fake_record("relative", 4)]
    write(runs[0])
    write(runs[1], source="another source")
    write(runs[2])
    path_of(runs[2]).with_name("test.hypotheses.txt").write_text("one line\n")
    found = samples(group_of(runs), path_of)
    assert [label for label, _ in found[0].hypotheses] == ["absolute (sinusoidal)"]
    assert samples(group_of([fake_record()]), path_of) == ()
