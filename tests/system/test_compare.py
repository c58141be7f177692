"""`rpr-cli compare` on made-up runs: pairing, what is refused, and agreement with the modules it calls."""

import json
import math
import random
import re
import shutil
from dataclasses import asdict
from functools import cache
from statistics import mean, stdev

import pytest

from rpr.cli import app
from rpr.config.train import TrainConfig
from rpr.records.files import DocumentNats, commit_records, read_documents
from rpr.records.record import find_records, read_record
from rpr.records.scores import OVER_DOCUMENTS, Interval
from rpr.report.page import read_beside
from rpr.scoring.comparison import Family, System
from rpr.scoring.metrics import all_scores
from rpr.scoring.statistics import Comparison, paired_tests
from rpr.validation import validate
from tests.fake_records import fake_document, fake_score, make_run
from tests.system.bad_files import set_config, update_record

REFERENCES = [f"Der Hund Nummer {number} läuft heute schnell durch den großen Park ." for number in range(60)]
SOURCES = [f"Dog number {number} runs fast through the big park today ." for number in range(60)]
ENDS = Interval(low=-1, high=3, level=0.95, kind="sentences", samples=9, seed=1, method="x")
SCORES = [fake_score("test", 1.0, test_set="made up", num_sentences=60, signature="of an earlier version")]
START = "synthetic-tiny-"


@cache
def settings(*words):
    return app.compose("train", ["logger=none", *words])


def make(tmp_path, words, seed=1, **changes):
    config = validate(TrainConfig, settings(*words) | {"seed": seed, "runs_dir": str(tmp_path / "runs")})
    given = {"status": "finished", "seed": seed, "data": fake_document()["data"], "sweeps": ["mine"]}
    return make_run(config, **(given | changes))


@pytest.fixture
def write_run(tmp_path):
    """Writes the folder of a run of the sweep `mine`; `texts` replace its sentences."""

    def write(position, noise, *words, seed=1, status="finished", **texts):
        folder = make(tmp_path, (f"position={position}", *words), seed, status=status, scores=SCORES)
        draw = random.Random(10 * seed + len(position))
        hypotheses = [" ".join("Katze" if draw.random() < noise else word for word in x.split()) for x in REFERENCES]
        for kind, lines in ({"sources": SOURCES, "references": REFERENCES, "hypotheses": hypotheses} | texts).items():
            (folder / f"test.{kind}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return folder

    return write


@pytest.fixture
def write_language_model(tmp_path):
    """Writes the folder of a language model that needs `nats` for a byte of the first of some documents of 100."""

    def write(position, nats, context=256, documents=40):
        words = ("data=text", "data.path=texts", "model.architecture=decoder_only", f"position={position}")
        of_documents = [100 * nats + number % 7 for number in range(documents)]
        bits = sum(of_documents) / (100 * documents * math.log(2))
        signature = f"tok:bytes|context:{context}|windows:separate"
        score = fake_score("test", bits, metric="bits_per_byte", signature=signature)
        folder = make(tmp_path, (*words, f"data.context_length={context}"), scores=[score])
        lines = (f'100\t{total}\t"{number}.txt"\n' for number, total in enumerate(of_documents))
        (folder / "test.documents.txt").write_text("".join(lines))
        return folder

    return write


@pytest.fixture
def compare(tmp_path, monkeypatch, cli):
    """Runs the command, which must end with a code; what it prints, to stderr if that is not 0."""
    monkeypatch.chdir(tmp_path)

    def call(*words, code=0):
        printed = cli("compare", "samples=200", "trials=300", *words, code=code)
        return " ".join((printed.err if code else printed.out).split())

    return call


@pytest.fixture
def tests_of(compare):
    return lambda *words: json.loads(compare(*words, "format=json"))["tests"]


def pairs_of(family):
    return {(pair["baseline"].removeprefix(START), pair["run"].removeprefix(START)) for pair in family["comparisons"]}


def test_two_runs_match_metric_and_significance_modules(write_run, compare, tests_of):
    first, second = write_run("absolute", 0.3), write_run("relative", 0.2)
    families = tests_of(first, second)
    assert [(one["split"], one["metric"]) for one in families] == [("test", "sacrebleu"), ("test", "chrf")]
    for one in families:
        texts = [(folder / "test.hypotheses.txt").read_text().splitlines() for folder in (first, second)]
        found = [all_scores(text, REFERENCES, "de", [one["metric"]])[0] for text in texts]
        assert [score["score"] for score in one["scores"]] == [ours.score for ours in found]
        assert (one["signature"], one["num_sentences"], one["test_set"]) == (found[0].signature, 60, "made up")
        expected = paired_tests(found[0].statistics, found[1].statistics, samples=200, trials=300)
        [comparison] = one["comparisons"]
        assert comparison["difference"] == expected.difference > 0
        assert comparison["interval"] == asdict(expected.interval)
        assert comparison["p_bootstrap"] == comparison["p_bootstrap_holm"] == expected.p_bootstrap
        assert comparison["p_randomisation"] == comparison["p_randomisation_holm"] == expected.p_randomisation
        assert comparison["verdict"].startswith("synthetic-tiny-relative-k16-s1 is better than")
    [pair] = families[0]["comparisons"]
    shown = f"2 - 1 {pair['difference']:+.2f} ({pair['interval']['low']:+.2f} to {pair['interval']['high']:+.2f})"
    printed = compare(first, second)
    assert shown in printed and "these tests do not show how another seed" in printed and "Holm" not in printed
    runs = [write_run(position, noise, "data=reverse") for position, noise in (("absolute", 0.3), ("none", 0))]
    exact, bleu = tests_of(*runs)
    assert (exact["metric"], exact["scores"][1]["score"], bleu["metric"]) == ("exact_match", 100.0, "sacrebleu")


def test_insignificant_difference_has_no_verdict():
    for p, q, significant in ((0.01, 0.2, False), (0.2, 0.01, False), (0.04, 0.04, True), (0.05, 0.01, False)):
        systems = tuple(System(name, name, name, 1, 30.0, ENDS) for name in "ab")
        family = Family("test", "x", "chrf", "", 9, systems, (Comparison("a", "b", 1.0, ENDS, p, q),))
        assert (family.verdicts[0] is not None) == significant, (p, q)


def test_several_runs_get_holm_correction(write_run, tests_of):
    runs = [write_run("absolute", 0.3), write_run("relative", 0.3), write_run("none", 0.6)]
    [one] = tests_of(*runs, "metrics=[chrf]")
    relative, none = one["comparisons"]
    assert none["p_randomisation_holm"] == pytest.approx(2 * none["p_randomisation"])
    assert relative["p_randomisation_holm"] == relative["p_randomisation"] > none["p_randomisation"]
    assert (relative["verdict"], " is worse than " in none["verdict"]) == (None, True)


def test_seeds_are_paired_and_averaged(write_run, compare, tests_of):
    absolute = [write_run("absolute", 0.3, seed=seed) for seed in (1, 2, 3)]
    relative = [write_run("relative", 0.25, seed=seed) for seed in (2, 3, 7)]
    [one] = tests_of(*absolute, *relative, "metrics=[sacrebleu]")
    pairs = [(pair["baseline"][-1], pair["run"][-1]) for pair in one["comparisons"]]
    assert pairs == [("2", "2"), ("3", "3"), ("1", "7")]  # the first baseline stands in for the missing seed 7
    variants = {variant["variant"]: variant for variant in one["variants"]}
    assert set(variants) == {"synthetic-tiny-absolute", "synthetic-tiny-relative-k16"}
    scores = [score["score"] for score in one["scores"] if score["variant"] == "synthetic-tiny-absolute"]
    found = variants["synthetic-tiny-absolute"]
    assert (found["mean"], found["sd"]) == pytest.approx((mean(scores), stdev(scores)))
    printed = compare(*absolute, *relative, "metrics=[sacrebleu]")
    assert "relative-k16-s7 is compared with a run of another seed, synthetic-tiny-absolute-s1." in printed
    [only] = tests_of(*absolute, "metrics=[sacrebleu]")
    assert [pair["run"][-1] for pair in only["comparisons"]] == ["2", "3"]


def test_sweep_is_compared_with_its_absolute_runs(write_run, tests_of, cli):
    for seed in (1, 2):
        write_run("absolute", 0.3, seed=seed)
        write_run("relative", 0.2, seed=seed)
    write_run("none", 0.2, seed=2)
    write_run("learned", 0.2, status="failed")
    other = write_run("rope", 0.2)
    set_config("optim.brand\x1bnew", 1)(other)
    [one] = tests_of("sweep=mine", "metrics=[chrf]")
    own = {("absolute-s1", "relative-k16-s1"), ("absolute-s2", "relative-k16-s2"), ("absolute-s2", "none-s2")}
    assert pairs_of(one) == own
    err = cli("compare", "sweep=mine", "metrics=[chrf]", "samples=100", "trials=100").err
    assert re.search("left out: runs/synthetic-tiny-learned-s1-.*: failed: RuntimeError: rank 1 died; only", err)
    problem = "this version of rpr cannot read its configuration (optim.brand\\x1bnew: no such setting"
    assert f"left out: runs/{other.name}/record.json: {problem}" in err
    assert problem in cli("compare", other, other, code=2).err


OF_ANOTHER = {  # other texts of the second run
    "other texts of test (60 and 60 lines)": {"references": [*REFERENCES[:4], "Etwas anderes .", *REFERENCES[5:]]},
    "scored on other texts of test (60 and 60 lines)": {"sources": SOURCES[:-1]},
    "5 hypotheses for 60 references of test": {"hypotheses": REFERENCES[:5]},
}


def test_what_cannot_be_compared_is_refused(write_run, compare):
    first = write_run("absolute", 0.3)
    running = write_run("relative", 0.3, status="running")
    assert "still running, or killed (started 2026-01-02" in compare(first, running, code=2)
    for again in (first.relative_to(first.parents[1]), f"{first}/../{first.name}", first / "record.json"):
        assert "is given twice; give each run once" in compare(first, again, code=2)
    for expected, texts in OF_ANOTHER.items():
        assert expected in compare(first, write_run("none", 0.3, **texts), code=2)
    other = write_run("none", 0.3)
    assert "has no long.hypotheses.txt" in compare(first, other, "splits=[long]", code=2)
    (other / "test.hypotheses.txt").write_bytes(b"\xff\n")
    assert "cannot be read (" in compare(first, other, code=2)
    (other / "test.hypotheses.txt").unlink()
    assert "with their nats, of a split that every run has (test" in compare(first, other, code=2)


def test_chinese_is_compared_by_its_characters_and_an_empty_system_has_no_verdict(write_run, compare, tests_of):
    chinese = [f"菲伊认识第{number}只狗，你们呢？" for number in range(60)]
    words, texts = "data.target_language=zho_Hans", {"references": chinese}
    first = write_run("absolute", 0, words, **texts, hypotheses=chinese)
    empty = write_run("relative", 0, words, **texts, hypotheses=[""] * 60)
    [one] = tests_of(first, empty, "metrics=[sacrebleu]")
    assert "|tok:zh|" in one["signature"] and [round(score["score"], 6) for score in one["scores"]] == [100, 0]
    [comparison] = one["comparisons"]
    assert (comparison["p_bootstrap"], comparison["p_randomisation"]) == (1 / 201, 1 / 301)
    assert comparison["verdict"] is None, "it learned nothing"
    assert "60 translations are empty" in compare(first, empty)
    message = compare(first, write_run("none", 0, words, "evaluation.bleu_tokenizer=char", **texts), code=2)
    assert "have different sacrebleu, " in message and "|tok:zh|" in message and "|tok:char|" in message


def test_language_models_are_compared_over_documents_of_one_corpus_in_the_same_windows(
    write_language_model, compare, tests_of
):
    runs = [write_language_model("none", 1.5), write_language_model("rope", 1.496)]
    [one] = tests_of("sweep=mine", "baseline=none")
    [comparison] = one["comparisons"]
    assert comparison["difference"] == pytest.approx(-0.004 / math.log(2))
    names = [f"text-tiny-decoder-only-{position}-s1" for position in ("rope", "none")]
    assert comparison["verdict"] == " is better than ".join(names) + " on these documents"
    assert {comparison["interval"]["method"], one["scores"][0]["interval"]["method"]} == {OVER_DOCUMENTS}
    longer = write_language_model("none", 1.4, context=512)
    assert "have different bits_per_byte, tok:bytes|context:256|" in compare(runs[0], longer, code=2)
    documents = fake_document()["data"]
    update_record(data=documents | {"key": "ef56"})(runs[1])
    assert "trained on another corpus" in compare(*runs, code=2)
    update_record(data=documents)(runs[1])
    file = runs[1] / "test.documents.txt"
    text = file.read_text()
    file.write_text(text.replace("100\t", "99\t", 1))
    assert "were scored on other texts of test (40 and 40 lines)" in compare(*runs, code=2)
    file.write_text(text.replace(f"{149.6}", "150.0", 1))
    assert f"{runs[1].name}/record.json: " in (message := compare(*runs, code=2)) and "restore those" in message
    file.unlink()
    assert "documents with their nats, of a split that every run has (test)" in compare(*runs, code=2)


def test_reports_read_the_documents_of_a_whole_split_where_an_evaluation_has_more(write_language_model, tmp_path):
    folder = write_language_model("none", 1.5)
    (folder / "whole test.documents.txt").write_text('100\t150.5\t"a.txt"\n')
    commit_records([(folder / "record.json", read_record(folder / "record.json"))], tmp_path / "kept")
    [(kept, record)] = find_records(tmp_path / "kept").records
    assert read_beside(kept, record, []).documents == {"test": [DocumentNats("a.txt", 100, 150.5)]}
    assert len(read_documents(kept, "test")) == 40


def test_translations_other_than_those_that_were_scored_are_not_compared(write_run, compare):
    runs = [write_run("absolute", 0.3), write_run("relative", 0.2)]
    file = runs[1] / "test.hypotheses.txt"
    lines = file.read_text("utf-8").splitlines()
    metrics = all_scores(lines, REFERENCES, "de")
    update_record(scores=[fake_score("test", one.score, one.name, signature=one.signature) for one in metrics])(runs[1])
    compare(*runs)
    file.write_text("".join(f"{line}\n" for line in ("Katze", *lines[1:])), "utf-8")
    message = compare(*runs, code=2)
    assert f"{runs[1].name}/record.json: " in message and "by the files beside it; restore those" in message


def test_a_single_document_or_sentence_is_no_sample(write_language_model, write_run, compare):
    """Every bootstrap sample would be the same: an interval of no width, and the smallest p."""
    runs = [write_language_model(position, nats, documents=1) for position, nats in (("none", 1.5), ("rope", 1.4))]
    assert "splits: test of text has 1 document, which says nothing about others" in compare(*runs, code=2)
    texts = {"sources": SOURCES[:1], "references": REFERENCES[:1], "hypotheses": REFERENCES[:1]}
    runs = [write_run(position, 0, **texts) for position in ("absolute", "relative")]
    for metrics in ("[chrf]", "[exact_match]"):
        assert " has 1 sentence, which says nothing about others" in compare(*runs, f"metrics={metrics}", code=2)


def test_committed_translations_are_compared_like_the_files_of_the_folders(write_run, compare, tmp_path):
    folders = [write_run("absolute", 0.3), write_run("relative", 0.2)]
    expected = compare("sweep=mine")
    records = [(folder / "record.json", read_record(folder / "record.json")) for folder in folders]
    commit_records(records, tmp_path / "kept")
    names = [f"kept:{record.name}-{record.run_id}" for _, record in records]
    assert compare("sweep=mine", "runs_dir=kept") == compare(*names) == expected
    commit_records(records, tmp_path / "bad")
    (tmp_path / "bad" / "hypotheses.jsonl.xz").write_bytes(b"x")
    assert "cannot be read (" in compare(*(name.replace("kept", "bad", 1) for name in names), code=2)


def test_seeds_of_one_variant_differ_in_nothing_that_decides_a_score(write_run, tests_of):
    """A rerun counts no seed; runs of one name are shown by their folders."""
    first, code = write_run("relative", 0.3), {"schemes": {"vectors": "a" * 16}}
    update_record(**code)(first)
    rerun = shutil.copytree(first, first.with_name("rerun"))
    for word, edits, seeds in (
        ("hardware.threads=3", {}, [2]),
        ("hardware.precision=bf16", {}, [1, 1]),
        ("hardware.threads=3", {"schemes.vectors": "b" * 16}, [1, 1]),
    ):
        second = write_run("relative", 0.2, word, seed=2)
        update_record(**code | edits)(second)
        [family] = tests_of(first, second, rerun, "metrics=[chrf]")
        assert [variant["n"] for variant in family["variants"]] == seeds
        assert [score["run"] for score in family["scores"]][::2] == [str(first), str(rerun)]
