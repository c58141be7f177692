"""`rpr-cli compare` on folders made up for the test: which runs are paired, what is printed, what is refused, and that
its figures are those of the modules below it. Every score here is of invented sentences.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rpr.cli import app
from rpr.config.train import TrainConfig
from rpr.metrics.bleu import chrf, sacrebleu_13a
from rpr.metrics.comparison import Comparison, read_run
from rpr.metrics.significance import PairedTests, paired_tests
from rpr.records.record import Git, Record, write_record
from rpr.records.scores import Interval
from rpr.validation import validate

REFERENCES = [f"Der Hund Nummer {number} läuft heute schnell durch den großen Park ." for number in range(60)]
SOURCES = [f"Dog number {number} runs fast through the big park today ." for number in range(60)]


def worsened(noise: float, seed: int) -> list[str]:
    choose = random.Random(seed)
    return [" ".join("Katze" if choose.random() < noise else word for word in line.split()) for line in REFERENCES]


class Shelf:
    """Run folders below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, position: str, noise: float, *, seed: int = 1, status: str = "finished", **changes: Any) -> Path:
        settings = [f"position={position}", f"seed={seed}", "logger=none", *changes.pop("settings", ())]
        config = validate(TrainConfig, app.compose("train", settings))
        finished = status == "finished"
        score = {"split": "test", "test_set": "made up", "metric": "sacrebleu", "score": 1.0, "signature": "s"}
        score |= {"num_sentences": 60, "checkpoint": "last", "beam_size": 4, "length_penalty": 0.6}
        record = Record(
            name=config.label,
            run_id=config.run_id,
            status=status,
            error="out of paper" if status == "failed" else None,
            sweeps=("mine",),
            command="rpr-cli train",
            config=config.model_dump(mode="json"),
            git=Git(commit=None, dirty=None),
            versions={},
            device="cpu",
            hardware="cpu",
            seed=seed,
            started="2026-01-01",
            finished="2026-01-02" if finished else None,
            steps=10 if finished else None,
            parameters=1 if finished else None,
            data={
                "name": "x",
                "synthetic": True,
                "train_pairs": 1,
                "dropped_pairs": 0,
                "vocabulary_size": 9,
                "key": "k",
            },
            training=None,
            scores=[score] if finished else [],
            wandb=None,
        )
        folder = self.root / config.run_dir_name
        write_record(folder / "record.json", record)
        texts = {"sources": SOURCES, "references": REFERENCES, "hypotheses": worsened(noise, 10 * seed + len(position))}
        for kind, lines in (texts | changes).items():
            (folder / f"test.{kind}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return folder


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "runs")


@pytest.fixture
def compare(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(*words: object, code: int = 0) -> str:
        assert app.main(["compare", f"runs_dir={shelf.root}", "samples=200", "trials=300", *map(str, words)]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return run


def test_two_runs(shelf: Shelf, compare: Any) -> None:
    """Figures as the modules give them; two tests for two metrics, no correction for one comparison."""
    first, second = shelf.put("absolute", 0.3), shelf.put("relative", 0.2)
    document = json.loads(compare(first, second, "format=json"))
    assert [(one["split"], one["metric"]) for one in document["tests"]] == [("test", "sacrebleu"), ("test", "chrf")]
    for metric, one in zip((sacrebleu_13a, chrf), document["tests"], strict=True):
        found = [
            metric((folder / "test.hypotheses.txt").read_text().splitlines(), REFERENCES) for folder in (first, second)
        ]
        assert [score["score"] for score in one["scores"]] == [ours.score for ours in found]
        assert (one["signature"], one["num_sentences"], one["test_set"]) == (found[0].signature, 60, "made up")
        expected = paired_tests(found[0].statistics, found[1].statistics, samples=200, trials=300)
        [comparison] = one["comparisons"]
        assert comparison["difference"] == expected.difference > 0
        assert comparison["interval"] == asdict(expected.interval)
        assert comparison["p_bootstrap"] == comparison["p_bootstrap_holm"] == expected.p_bootstrap
        assert comparison["p_randomisation"] == comparison["p_randomisation_holm"] == expected.p_randomisation
    assert document["tests"][0]["comparisons"][0]["verdict"].startswith("synthetic-tiny-relative-k16-s1 is better than")
    table = compare(first, second)
    assert max(map(len, table.splitlines())) <= 100
    told = " ".join(table.split())
    assert "test (made up, 60 sentences), sacreBLEU: nrefs:1|" in told and "(p < 0.05 by both tests)" in told
    score, interval = document["tests"][0]["scores"][1]["score"], document["tests"][0]["scores"][1]["interval"]
    cells = f"2 synthetic-tiny-relative-k16-s1 {score:.2f} [{interval['low']:.2f}, {interval['high']:.2f}]"
    assert cells in told
    one = document["tests"][0]["comparisons"][0]
    between = f"[{one['interval']['low']:+.2f}, {one['interval']['high']:+.2f}]"
    assert f" 2 - 1 {one['difference']:+.2f} {between} {one['p_bootstrap']:.4f} {one['p_randomisation']:.4f} " in told
    assert "Holm" not in told
    assert "One run per variant: these tests do not show how much another seed" in told


def test_nothing_is_said_of_a_difference_that_is_not_shown(shelf: Shelf, compare: Any) -> None:
    first, second = shelf.put("absolute", 0.3), shelf.put("relative", 0.3)
    told = " ".join(compare(first, second).split())
    assert "better" not in told.replace("no run is shown to be better", "") and " is worse" not in told
    assert "No difference is below p = 0.05 by both tests" in told
    same = shelf.put("none", 0.3, hypotheses=(first / "test.hypotheses.txt").read_text().splitlines())
    [one, _] = json.loads(compare(first, same, "format=json"))["tests"]
    assert (one["comparisons"][0]["difference"], one["comparisons"][0]["p_randomisation"]) == (0, 1)


def test_a_verdict_needs_both_tests(shelf: Shelf) -> None:
    first, second = (read_run(shelf.put(position, 0.3)) for position in ("absolute", "relative"))
    within = Interval(low=-1, high=3, level=0.95, kind="sentences", samples=9, seed=1, method="x")
    for p, q, said in ((0.01, 0.2, False), (0.2, 0.01, False), (0.04, 0.04, True), (0.05, 0.01, False)):
        one = Comparison(first, second, PairedTests(1.0, within, 0.01, 0.01), holm_bootstrap=p, holm_randomisation=q)
        assert (one.verdict is not None) == said, (p, q)


def test_several_are_corrected_for_their_number(shelf: Shelf, compare: Any) -> None:
    runs = [shelf.put("absolute", 0.3), shelf.put("relative", 0.3), shelf.put("none", 0.6)]
    [one] = json.loads(compare(*runs, "metrics=[chrf]", "format=json"))["tests"]
    relative, none = one["comparisons"]
    assert none["p_randomisation_holm"] == pytest.approx(2 * none["p_randomisation"])
    assert relative["p_randomisation_holm"] == relative["p_randomisation"] > none["p_randomisation"]
    assert (relative["verdict"], " is worse than " in none["verdict"]) == (None, True)
    told = " ".join(compare(*runs).split())
    assert "after Holm" in told and " runs difference p boot. Holm p rand. Holm " in told


def test_seeds_of_one_variant_are_paired_and_averaged(shelf: Shelf, compare: Any) -> None:
    absolute = [shelf.put("absolute", 0.3, seed=seed) for seed in (1, 2, 3)]
    relative = [shelf.put("relative", 0.25, seed=seed) for seed in (2, 3, 7)]
    [one] = json.loads(compare(*absolute, *relative, "metrics=[sacrebleu]", "format=json"))["tests"]
    # Seed 7 has no counterpart: it is compared with the first.
    assert [(pair["baseline"][-1], pair["run"][-1]) for pair in one["comparisons"]] == [
        ("2", "2"),
        ("3", "3"),
        ("1", "7"),
    ]
    variants = {variant["variant"]: variant for variant in one["variants"]}
    assert set(variants) == {"synthetic-tiny-absolute", "synthetic-tiny-relative-k16"}
    scores = [score["score"] for score in one["scores"] if score["variant"] == "synthetic-tiny-absolute"]
    mean = sum(scores) / 3
    assert variants["synthetic-tiny-absolute"]["mean"] == pytest.approx(mean)
    expected = (sum((score - mean) ** 2 for score in scores) / 2) ** 0.5
    assert variants["synthetic-tiny-absolute"]["sd"] == pytest.approx(expected)
    told = " ".join(compare(*absolute, *relative).split())
    assert "over 3 seeds" in told and "One run per variant" not in told
    assert "synthetic-tiny-relative-k16-s7 is compared with a run of another seed, synthetic-tiny-absolute-s1." in told
    [only] = json.loads(compare(*absolute, "metrics=[chrf]", "format=json"))["tests"]
    assert [pair["run"][-1] for pair in only["comparisons"]] == ["2", "3"]


def test_a_sweep_against_its_absolute_runs(shelf: Shelf, compare: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        shelf.put("absolute", 0.3, seed=seed)
        shelf.put("relative", 0.2, seed=seed)
    shelf.put("none", 0.2, seed=2)
    shelf.put("learned", 0.2, status="failed")
    [one] = json.loads(compare("sweep=mine", "metrics=[sacrebleu]", "format=json"))["tests"]
    pairs = {
        (pair["baseline"].removeprefix("synthetic-tiny-"), pair["run"].removeprefix("synthetic-tiny-"))
        for pair in one["comparisons"]
    }
    assert pairs == {("absolute-s1", "relative-k16-s1"), ("absolute-s2", "relative-k16-s2"), ("absolute-s2", "none-s2")}
    assert app.main(["compare", "sweep=mine", f"runs_dir={shelf.root}", "samples=100", "trials=100"]) == 0
    assert "left out: synthetic-tiny-learned-s1: failed: out of paper" in capsys.readouterr().err


def test_a_sweep_without_a_baseline_is_refused(shelf: Shelf, compare: Any) -> None:
    assert "does not exist; train the sweep first" in compare("sweep=mine", code=2)
    shelf.put("absolute", 0.3, seed=2)
    assert "sweep other: no finished run" in compare("sweep=other", code=2)
    said = compare("sweep=mine", code=2)
    assert "sweep mine: 1 finished runs, all of them baselines" in said and "rpr-cli compare RUN RUN" in said
    shelf.put("relative", 0.3, seed=1)
    shelf.put("absolute", 0.3, settings=["optim.max_steps=9", "optim.warmup_steps=3"])  # of another recipe: no baseline
    said = compare("sweep=mine", code=2)
    assert "synthetic-tiny-relative-k16-s1 has no finished baseline with position=absolute, seed=1" in said
    assert "rpr-cli compare BASELINE RUN" in said


def test_refusals_are_one_line(shelf: Shelf, compare: Any) -> None:
    first = shelf.put("absolute", 0.3)
    running = shelf.put("relative", 0.3, status="running")
    assert "still running, or killed (started 2026-01-01); only finished runs" in compare(first, running, code=2)
    assert "no such record" in compare(first, shelf.root / "nothing", code=2)
    assert "is given twice; give each run once" in compare(first, first, code=2)
    assert "; give the folders of at least two runs" in compare(first, code=2)
    other = shelf.put("none", 0.3, references=[*REFERENCES[:4], "Etwas anderes .", *REFERENCES[5:]])
    said = compare(first, other, code=2)
    assert "have different references of test, first in line 5 (60 and 60 lines)" in said and said.count("\n") == 1
    shelf.put("none", 0.3, sources=SOURCES[:-1])
    assert "different sources of test, first in line 60 (60 and 59 lines)" in compare(first, other, code=2)
    shelf.put("none", 0.3, hypotheses=REFERENCES[:5])
    assert "5 hypotheses for 60 references of test" in compare(first, other, code=2)
    (other / "test.hypotheses.txt").unlink()
    assert f"{other}: has no translations of a split that every run has (test" in compare(first, other, code=2)
    assert "has no long.hypotheses.txt" in compare(first, other, "splits=[long]", code=2)


def test_a_repeat_is_no_other_seed(shelf: Shelf, compare: Any) -> None:
    first = shelf.put("absolute", 0.3)
    repeat = first.with_name(f"{first.name}-rerun1")
    shutil.copytree(first, repeat)
    told = " ".join(compare(first, repeat).split())
    assert "over 2 seeds" not in told and "One run per variant" in told


def test_runs_of_one_name_are_told_apart(shelf: Shelf, compare: Any) -> None:
    runs = [shelf.put("relative", 0.3), shelf.put("relative", 0.2, settings=["model.dropout=0.3"])]
    [one] = json.loads(compare(*runs, "metrics=[chrf]", "format=json"))["tests"]
    assert [score["run"] for score in one["scores"]] == [run.name for run in runs]
    assert len({variant["variant"] for variant in one["variants"]}) == 2
