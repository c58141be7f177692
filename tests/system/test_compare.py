"""`rpr-cli compare` on made-up runs: pairing, output, error messages, and agreement with the modules it calls."""

import json
import math
import random
import re
import shutil
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest

from rpr.cli import app
from rpr.config.train import TrainConfig
from rpr.records.files import commit_records, read_translations
from rpr.records.record import read_record
from rpr.records.scores import OVER_DOCUMENTS, Interval
from rpr.scoring.comparison import Family, System
from rpr.scoring.metrics import all_scores
from rpr.scoring.statistics import Comparison, paired_tests
from rpr.validation import validate
from tests.fake_records import edited, fake_document, fake_score, make_run
from tests.system.bad_files import edit_record, set_config, update_record

REFERENCES = [f"Der Hund Nummer {number} läuft heute schnell durch den großen Park ." for number in range(60)]
SOURCES = [f"Dog number {number} runs fast through the big park today ." for number in range(60)]
ENDS = Interval(low=-1, high=3, level=0.95, kind="sentences", samples=9, seed=1, method="x")
SCORES = [fake_score("test", 1.0, test_set="made up", num_sentences=60, signature="of an earlier version")]


def noisy_references(noise, seed):
    draw = random.Random(seed)
    return [" ".join("Katze" if draw.random() < noise else word for word in line.split()) for line in REFERENCES]


@cache
def settings(*words):
    return app.compose("train", ["logger=none", *words])


def write_record(tmp_path, config, **changes):
    """The folder of a finished run of the sweep, with its record."""
    config = config.model_copy(update={"runs_dir": str(tmp_path / "runs")})
    given = {"status": "finished", "seed": config.seed, "data": fake_document()["data"], "sweeps": ["mine"]}
    return make_run(config, **(given | changes))


@pytest.fixture
def write_language_model(tmp_path):
    """Writes the folder of a language model that needs `nats` for a byte of the first of some documents of 100."""

    def write(position, nats, *words, documents=40):
        words = ("data=text", "data.path=texts", "model.architecture=decoder_only", f"position={position}", *words)
        config = validate(TrainConfig, settings(*words))
        signature = f"tok:bytes|context:{config.data.context_length}|windows:separate"
        of_documents = [100 * nats + number % 7 for number in range(documents)]
        bits = sum(of_documents) / (100 * documents * math.log(2))
        folder = write_record(
            tmp_path, config, scores=[fake_score("test", bits, metric="bits_per_byte", signature=signature)]
        )
        lines = (f'100\t{total}\t"{number}.txt"\n' for number, total in enumerate(of_documents))
        (folder / "test.documents.txt").write_text("".join(lines))
        return folder

    return write


@pytest.fixture
def write_run(tmp_path):
    """Writes the folder of a run; `texts` replace its sentences."""

    def write(position, noise, *, seed=1, status="finished", words=(), **texts):
        config = validate(TrainConfig, settings(f"position={position}", *words) | {"seed": seed})
        folder = write_record(tmp_path, config, status=status, scores=SCORES)
        hypotheses = noisy_references(noise, 10 * seed + len(position))
        for kind, lines in ({"sources": SOURCES, "references": REFERENCES, "hypotheses": hypotheses} | texts).items():
            (folder / f"test.{kind}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return folder

    return write


@pytest.fixture
def compare(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)

    def call(*words, code=0, with_err=False):
        out, err = cli("compare", "samples=200", "trials=300", *words, code=code)
        return (out, err) if with_err else err if code else out

    return call


def one_line(text):
    return " ".join(text.split())


def test_runs_of_a_task_are_compared_by_exact_match(write_run, compare):
    runs = [write_run(position, noise, words=("data=reverse",)) for position, noise in (("absolute", 0.3), ("none", 0))]
    exact, bleu = json.loads(compare(*runs, "format=json"))["tests"]
    assert (exact["metric"], exact["scores"][1]["score"], bleu["metric"]) == ("exact_match", 100.0, "sacrebleu")


def test_two_runs_match_metric_and_significance_modules(write_run, compare):
    first, second = write_run("absolute", 0.3), write_run("relative", 0.2)
    document = json.loads(compare(first, second, "format=json"))
    assert [(one["split"], one["metric"]) for one in document["tests"]] == [("test", "sacrebleu"), ("test", "chrf")]
    for one in document["tests"]:
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
    [one], second_score = document["tests"][0]["comparisons"], document["tests"][0]["scores"][1]
    score, interval = second_score["score"], second_score["interval"]
    assert one["verdict"].startswith("synthetic-tiny-relative-k16-s1 is better than")
    printed = compare(first, second)
    assert max(map(len, printed.splitlines())) <= 100
    printed = one_line(printed)
    between = f"({one['interval']['low']:+.2f} to {one['interval']['high']:+.2f})†"
    for part in (
        "test (made up, 60 sentences), sacreBLEU: nrefs:1|",
        "(p < 0.05 by both tests)",
        f"2 synthetic-tiny-relative-k16-s1 {score:.2f} ({interval['low']:.2f} to {interval['high']:.2f})†",
        f" 2 - 1 {one['difference']:+.2f} {between} {one['p_bootstrap']:.4f} {one['p_randomisation']:.4f} ",
        "One run per variant: these tests do not show how much another seed",
        "60 references end in ' .': the corpus looks tokenised",
    ):
        assert part in printed
    assert "Holm" not in printed


def test_insignificant_difference_has_no_verdict():
    for p, q, significant in ((0.01, 0.2, False), (0.2, 0.01, False), (0.04, 0.04, True), (0.05, 0.01, False)):
        systems = tuple(System(name, name, name, 1, 30.0, ENDS) for name in "ab")
        family = Family("test", "x", "chrf", "", 9, systems, (Comparison("a", "b", 1.0, ENDS, p, q),))
        assert (family.verdicts[0] is not None) == significant, (p, q)


def test_several_runs_get_holm_correction(write_run, compare):
    runs = [write_run("absolute", 0.3), write_run("relative", 0.3), write_run("none", 0.6)]
    [one] = json.loads(compare(*runs, "metrics=[chrf]", "format=json"))["tests"]
    relative, none = one["comparisons"]
    assert none["p_randomisation_holm"] == pytest.approx(2 * none["p_randomisation"])
    assert relative["p_randomisation_holm"] == relative["p_randomisation"] > none["p_randomisation"]
    assert (relative["verdict"], " is worse than " in none["verdict"]) == (None, True)
    printed = one_line(compare(*runs, "metrics=[sacrebleu]"))
    assert "after Holm" in printed and " runs difference p boot. Holm p rand. Holm " in printed


def test_seeds_are_paired_and_averaged(write_run, compare):
    absolute = [write_run("absolute", 0.3, seed=seed) for seed in (1, 2, 3)]
    relative = [write_run("relative", 0.25, seed=seed) for seed in (2, 3, 7)]
    [one] = json.loads(compare(*absolute, *relative, "metrics=[sacrebleu]", "format=json"))["tests"]
    pairs = [(pair["baseline"][-1], pair["run"][-1]) for pair in one["comparisons"]]
    assert pairs == [("2", "2"), ("3", "3"), ("1", "7")]  # the first baseline stands in for the missing seed 7
    variants = {variant["variant"]: variant for variant in one["variants"]}
    assert set(variants) == {"synthetic-tiny-absolute", "synthetic-tiny-relative-k16"}
    scores = [score["score"] for score in one["scores"] if score["variant"] == "synthetic-tiny-absolute"]
    mean = sum(scores) / 3
    assert variants["synthetic-tiny-absolute"]["mean"] == pytest.approx(mean)
    expected = (sum((score - mean) ** 2 for score in scores) / 2) ** 0.5
    assert variants["synthetic-tiny-absolute"]["sd"] == pytest.approx(expected)
    printed = one_line(compare(*absolute, *relative, "metrics=[sacrebleu]"))
    assert "over 3 seeds" in printed and "One run per variant" not in printed
    assert "relative-k16-s7 is compared with a run of another seed, synthetic-tiny-absolute-s1." in printed
    [only] = json.loads(compare(*absolute, "metrics=[sacrebleu]", "format=json"))["tests"]
    assert [pair["run"][-1] for pair in only["comparisons"]] == ["2", "3"]


def test_sweep_is_compared_with_its_absolute_runs(write_run, compare):
    for seed in (1, 2):
        write_run("absolute", 0.3, seed=seed)
        write_run("relative", 0.2, seed=seed)
    write_run("none", 0.2, seed=2)
    write_run("learned", 0.2, status="failed")
    out, err = compare("sweep=mine", "metrics=[sacrebleu]", "format=json", with_err=True)
    pairs = {(pair["baseline"], pair["run"]) for pair in json.loads(out)["tests"][0]["comparisons"]}
    assert {tuple(name.removeprefix("synthetic-tiny-") for name in pair) for pair in pairs} == {
        ("absolute-s1", "relative-k16-s1"), ("absolute-s2", "relative-k16-s2"), ("absolute-s2", "none-s2")
    }  # fmt: skip
    assert re.search("left out: runs/synthetic-tiny-learned-s1-.*: failed: RuntimeError: rank 1 died; only", err)
    page = compare("sweep=mine", "metrics=[sacrebleu]", "format=markdown")
    assert page.startswith("# Paired tests: sweep mine\n\n## test (made up, 60 sentences), sacreBLEU: nrefs:1")
    [first] = [line for line in page.splitlines() if line.startswith("| 2 - 1 |")]
    pair = json.loads(out)["tests"][0]["comparisons"][0]
    assert first.startswith(f"| 2 - 1 | {pair['difference']:+.2f} ({pair['interval']['low']:+.2f} to ")


def test_a_record_of_another_version_is_left_out_of_a_sweep_and_refused_by_name(write_run, compare):
    runs = [write_run(position, 0.3) for position in ("absolute", "relative", "none")]
    set_config("optim.brand\x1bnew", 1)(runs[2])
    problem = "this version of rpr cannot read its configuration (optim.brand\\x1bnew: no such setting"
    problem = f"runs/{runs[2].name}/record.json: {problem}"
    assert problem in compare(*runs, code=2)
    out, err = compare("sweep=mine", "metrics=[chrf]", with_err=True)
    assert f"left out: {problem}" in err and "relative-k16-s1" in out and "none" not in out


def test_sweep_without_baseline_is_refused(write_run, compare):
    assert "sweep mine: no finished run to compare in runs" in compare("sweep=mine", code=2)
    write_run("absolute", 0.3, seed=2)
    assert "sweep other: no finished run to compare in runs" in compare("sweep=other", code=2)
    message = compare("sweep=mine", code=2)
    assert "sweep mine: 1 finished runs, all of them baselines" in message
    write_run("relative", 0.3, seed=1)
    write_run("absolute", 0.3, words=("optim.max_steps=9", "optim.warmup_steps=3"))  # another recipe is no baseline
    message = compare("sweep=mine", code=2)
    alone = "synthetic-tiny-relative-k16-s1 has no finished baseline with position=absolute, seed=1"
    assert f"sweep mine: {alone}" in message and "choose another (baseline=relative), or name" in message
    write_run("relative", 0.3, seed=2)
    out, err = compare("sweep=mine", with_err=True)
    assert f"left out: {alone}" in err and "k16-s2" in out and "k16-s1" not in out
    assert "rpr-cli compare BASELINE RUN" in message


def test_error_messages_are_one_line(write_run, compare):
    first = write_run("absolute", 0.3)
    running = write_run("relative", 0.3, status="running")
    assert "still running, or killed (started 2026-01-02" in compare(first, running, code=2)
    for again in (first, first.relative_to(first.parents[1]), f"{first}/../{first.name}", first / "record.json"):
        assert "is given twice; give each run once" in compare(first, again, code=2)
    other = write_run("none", 0.3)
    for expected, texts in {
        "other texts of test (60 and 60 lines)": {"references": [*REFERENCES[:4], "Etwas anderes .", *REFERENCES[5:]]},
        "scored on other texts of test (60 and 60 lines)": {"sources": SOURCES[:-1]},
        "5 hypotheses for 60 references of test": {"hypotheses": REFERENCES[:5]},
    }.items():
        write_run("none", 0.3, **texts)
        message = compare(first, other, code=2)
        assert expected in message and message.count("\n") == 1
    (other / "test.hypotheses.txt").write_bytes(b"\xff\n")
    assert "cannot be read (" in compare(first, other, code=2)
    (other / "test.hypotheses.txt").unlink()
    assert "with their nats, of a split that every run has (test" in compare(first, other, code=2)
    assert "has no long.hypotheses.txt" in compare(first, other, "splits=[long]", code=2)


def test_chinese_is_compared_by_its_characters_and_an_empty_system_has_no_verdict(write_run, compare):
    chinese = [f"菲伊认识第{number}只狗，你们呢？" for number in range(60)]
    words = ("data.target_language=zho_Hans",)
    runs = [
        write_run(position, 0, words=words, references=chinese, hypotheses=hypotheses)
        for position, hypotheses in (("absolute", chinese), ("relative", [""] * 60))
    ]
    [one] = json.loads(compare(*runs, "metrics=[sacrebleu]", "format=json"))["tests"]
    assert "|tok:zh|" in one["signature"] and [round(score["score"], 6) for score in one["scores"]] == [100, 0]
    [comparison] = one["comparisons"]
    assert comparison["p_bootstrap"] == 1 / 201 and comparison["p_randomisation"] == 1 / 301
    assert comparison["verdict"] is None, "it learned nothing"
    printed = one_line(compare(*runs))
    assert "60 translations are empty" in printed and "looks tokenised" not in printed
    other = write_run("none", 0, words=(*words, "evaluation.bleu_tokenizer=char"), references=chinese)
    message = compare(runs[0], other, code=2)
    assert "have different sacrebleu, " in message and "|tok:zh|" in message and "|tok:char|" in message
    [one] = json.loads(compare(runs[0], other, "metrics=[sacrebleu]", "bleu_tokenizer=char", "format=json"))["tests"]
    assert "|tok:char|" in one["signature"]


def test_language_models_of_other_corpora_or_documents_are_not_compared(write_language_model, compare):
    runs = [write_language_model("none", 1.5), write_language_model("rope", 1.4)]
    file = runs[1] / "test.documents.txt"
    file.write_text(file.read_text().replace("100\t", "99\t", 1))
    assert "were scored on other texts of test (40 and 40 lines)" in compare(*runs, code=2)
    runs[1] = write_language_model("rope", 1.4)
    edit_record(lambda document: document["data"].update(key="ef56"))(runs[1])
    assert "trained on another corpus" in compare(*runs, code=2)


@pytest.mark.parametrize("kind", ["hypotheses", "documents"])
def test_files_other_than_those_that_were_scored_are_not_compared(write_language_model, write_run, compare, kind):
    if kind == "documents":
        runs = [write_language_model("none", 1.5), write_language_model("rope", 1.4)]
    else:
        runs = [write_run("absolute", 0.3), write_run("relative", 0.2)]
        metrics = all_scores(read_translations(runs[1] / "record.json", "test").hypotheses, REFERENCES, "de")
        scores = [fake_score("test", metric.score, metric.name, signature=metric.signature) for metric in metrics]
        edit_record(lambda document: document.update(scores=scores))(runs[1])
    compare(*runs)
    file = runs[1] / f"test.{kind}.txt"
    lines = file.read_text("utf-8").splitlines(keepends=True)
    file.write_text("".join([lines[0].replace("140.0", "150.0").replace("Hund", "Katze"), *lines[1:]]), "utf-8")
    message = compare(*runs, code=2)
    assert f"{runs[1].name}/record.json: " in message and "by the files beside it; restore those" in message


def test_language_models_are_compared_over_documents_of_one_corpus_in_the_same_windows(write_language_model, compare):
    runs = [write_language_model("none", 1.5), write_language_model("rope", 1.496)]
    [one] = json.loads(compare("sweep=mine", "baseline=none", "format=json"))["tests"]
    [comparison] = one["comparisons"]
    assert one["test_set"] == "test_2016_flickr"
    assert comparison["difference"] == pytest.approx(-0.004 / math.log(2))
    names = [f"text-tiny-decoder-only-{position}-s1" for position in ("rope", "none")]
    assert comparison["verdict"] == " is better than ".join(names) + " on these documents"
    assert {comparison["interval"]["method"], one["scores"][0]["interval"]["method"]} == {OVER_DOCUMENTS}
    assert " 2 - 1 -0.006 (-0.006 to -0.006)† " in one_line(compare(*runs))
    longer = write_language_model("none", 1.4, "data.context_length=512")
    assert "have different bits_per_byte, tok:bytes|context:256|" in compare(runs[0], longer, code=2)
    for run in runs:
        (run / "test.documents.txt").unlink()
    assert "documents with their nats, of a split that every run has (test)" in compare(*runs, code=2)


def test_a_single_document_or_sentence_is_no_sample(write_language_model, write_run, compare):
    """Every bootstrap sample would be the same: an interval of no width, and the smallest p."""
    runs = [write_language_model(position, nats, documents=1) for position, nats in (("none", 1.5), ("rope", 1.4))]
    message = compare(*runs, code=2)
    assert message.startswith("rpr-cli: splits: test of text has 1 document, which says nothing about others; choose")
    texts = {"sources": SOURCES[:1], "references": REFERENCES[:1], "hypotheses": REFERENCES[:1]}
    runs = [write_run(position, 0, **texts) for position in ("absolute", "relative")]
    for metrics in ("[chrf]", "[exact_match]"):
        message = compare(*runs, f"metrics={metrics}", code=2)
        assert " has 1 sentence, which says nothing about others; choose other splits=[...], or train" in message


def test_runs_with_same_name_are_told_apart_by_their_folders(write_run, compare):
    runs = [write_run("relative", 0.3), write_run("relative", 0.2, words=("model.dropout=0.3",))]
    [one] = json.loads(compare(*runs, "metrics=[sacrebleu]", "format=json"))["tests"]
    assert [score["run"] for score in one["scores"]] == [*map(str, runs)]
    first, second = (variant["variant"] for variant in one["variants"])
    assert first != second and first.startswith("synthetic-tiny-relative-k16-")


def test_what_differs_between_two_runs_besides_positions_and_seed_is_said(write_run, compare):
    """From the settings and, for decoding, from the scores; once for a pair; a record's text is escaped."""
    runs = [write_run("absolute", 0.3), write_run("relative", 0.2, words=["position.clip_distance=2"])]
    for run, precision in zip(runs, (None, "32"), strict=True):  # older records have none
        edit_record(lambda document, value=precision: document["scores"][0].update(precision=value))(run)
    assert json.loads(compare(*runs, "format=json"))["remarks"] == []
    other = write_run("relative", 0.2, words=["optim.max_steps=999999", "evaluation.beam_size=16"])
    decoded = {"checkpoint": "step 12", "beam_size": 16, "precision": "bf16"}
    edit_record(lambda document: document["scores"][0].update(decoded))(other)
    set_config("optim.name", "a\x1bb")(other)
    names = [f"synthetic-tiny-{position}-s1" for position in ("relative-k16", "absolute")]
    first = json.loads((runs[0] / "record.json").read_text())
    steps, checkpoint = first["config"]["optim"]["max_steps"], first["scores"][0]["checkpoint"]
    differences = (
        rf"name a\x1bb, not tiny; max_steps 999999, not {steps}; beam_size 16, not 4; "
        f"checkpoint step 12, not {checkpoint}; precision bf16, not 32"
    )
    remark = f"{' was trained or decoded otherwise than '.join(names)}: {differences}."
    assert json.loads(compare(runs[0], other, "format=json"))["remarks"] == [remark]
    assert one_line(compare(runs[0], other)).endswith(remark)


def test_any_variant_is_the_baseline_of_a_sweep(write_run, compare):
    variants = {"absolute": (), "none": (), "relative-k16": (), "relative-k2": ["position.clip_distance=2"]}
    for name, words in variants.items():
        write_run(name.partition("-")[0], 0.3, words=words)
    for word, baseline in (("none", "none"), ("relative-k2", "relative-k2"), ("'relative, k = 2'", "relative-k2")):
        out = compare("sweep=mine", f"baseline={word}", "metrics=[chrf]", "format=json")
        pairs = {(pair["baseline"], pair["run"]) for pair in json.loads(out)["tests"][0]["comparisons"]}
        found = {tuple(name[len("synthetic-tiny-") : -len("-s1")] for name in pair) for pair in pairs}
        assert found == {(baseline, name) for name in variants if name != baseline}
    message = compare("sweep=mine", "baseline=relative", code=2)
    assert """relative-k2; give baseline='"relative, k = 16"', or name the runs""" in message


def test_committed_translations_are_compared_like_the_files_of_the_folders(write_run, compare, tmp_path):
    folders = [write_run("absolute", 0.3), write_run("relative", 0.2)]
    expected = compare("sweep=mine", "format=markdown")
    records = [(folder / "record.json", read_record(folder / "record.json")) for folder in folders]
    commit_records(records, tmp_path / "kept")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["hypotheses.jsonl.xz", "records.jsonl"]
    assert compare("sweep=mine", "runs_dir=kept", "format=markdown") == expected
    names = [f"kept:{record.name}-{record.run_id}" for _, record in records]
    assert compare(*names, "format=markdown").splitlines()[1:] == expected.splitlines()[1:]
    commit_records(records, tmp_path / "bad")
    (tmp_path / "bad" / "hypotheses.jsonl.xz").write_bytes(b"x")
    assert "cannot be read (" in compare(*(name.replace("kept", "bad", 1) for name in names), code=2)
    (tmp_path / "bad" / "hypotheses.jsonl.xz").unlink()
    err = compare("sweep=mine", "runs_dir=bad", code=2)
    assert "no finished run to compare in bad" in err


ORIGIN = {"run": "runs/a", "run_id": "a", "settings_id": "1a", "positions": "RoPE", "steps": 1500}
OF_ANOTHER_SEED = {  # settings and record of a run of the same positions, and whether it is another variant
    "nothing else": ((), {}, False),
    "threads and splits": (("hardware.threads=3", "evaluation.test_splits=[test]"), {}, False),
    "precision": (("hardware.precision=bf16",), {}, True),
    "matmuls": ((), {"training.matmul_precision": "medium"}, True),
    "code of a scheme": ((), {"schemes.vectors": "b" * 16}, True),
    "corpus": ((), {"data.key": "ef56"}, True),
    "origin": ((), {"config.origin": ORIGIN | {"seed": 1, "weights": "a"}}, True),
}


@pytest.mark.parametrize("words, edits, another", OF_ANOTHER_SEED.values(), ids=OF_ANOTHER_SEED)
def test_seeds_of_one_variant_differ_in_nothing_that_decides_a_score(write_run, compare, words, edits, another):
    runs = [write_run("relative", 0.3), write_run("relative", 0.2, seed=2, words=words)]
    for run, changes in zip(runs, ({}, edits), strict=True):
        update_record(schemes={"vectors": "a" * 16})(run)
        document = json.loads((run / "record.json").read_text())
        (run / "record.json").write_text(json.dumps(edited(document, changes)))
    rerun = Path(shutil.copytree(runs[0], runs[0].with_name("rerun")))  # counts no seed
    [family] = json.loads(compare(*runs, rerun, "metrics=[chrf]", "format=json"))["tests"]
    assert [variant["n"] for variant in family["variants"]] == ([1, 1] if another else [2])
