"""Sample translations: which sentences a report shows."""

import pytest

from rpr.report.groups import Beside, run_key
from rpr.report.page import samples
from tests.fake_records import fake_record
from tests.report.helpers import group_of


@pytest.fixture
def beside(tmp_path):
    """What is beside a run, and a function that writes its translations."""

    def of(run):
        return Beside(tmp_path / run.run_id / "record.json")

    def write(run, split="test", lines=6, source="source", hypothesis="hypothesis"):
        for kind, text in (("sources", source), ("references", "reference"), ("hypotheses", hypothesis)):
            file = of(run).path.with_name(f"{split}.{kind}.txt")
            file.parent.mkdir(exist_ok=True)
            file.write_text("".join(f"{text} {n}\n" for n in range(1, lines + 1)))

    return of, write


def samples_of(runs, beside):
    return samples(group_of(runs, {run_key(run): beside(run) for run in runs}))


def test_lines_are_evenly_spaced_from_the_first_finished_run(beside):
    of, write = beside
    failed, first, second = fake_record(seed=1, status="failed"), fake_record(seed=2), fake_record(seed=3)
    odd = "first\u2028and\x0bsame"  # separators that do not end a line
    for run, text in ((failed, "failed"), (first, odd), (second, "second")):
        write(run, hypothesis=text)
    write(first, split="long", lines=2, hypothesis="long")
    found = samples_of([failed, first, second], of)
    # Of 6 lines one from the middle of each third, of 2 lines both.
    assert [one[:2] for one in found] == [("test", 2), ("test", 4), ("test", 6), ("long", 1), ("long", 2)]
    assert found[0][2:] == ("source 2", "reference 2", [("relative, k = 16", f"{odd} 2")])


def test_translations_of_other_sources_or_of_other_lengths_are_not_shown(beside):
    of, write = beside
    runs = [fake_record("absolute"), fake_record("none"), fake_record("relative", 2), fake_record("relative", 4)]
    write(runs[0])
    write(runs[1], source="another source")
    write(runs[2])
    of(runs[2]).path.with_name("test.hypotheses.txt").write_text("one line\n")
    found = samples_of(runs, of)
    assert [label for label, _ in found[0][-1]] == ["absolute (sinusoidal)"]
    assert samples_of([fake_record()], of) == []
