"""sacreBLEU and chrF against the sacrebleu command; the paper group's protocol by hand and by multi-bleu's formula."""

from __future__ import annotations

import json
import logging
import math
import re
import subprocess
import sys
from collections import Counter

import pytest
import sacrebleu
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from rpr.errors import DataError
from rpr.metrics.bleu import Metric, all_scores, moses_language, moses_tokenise


def metric(name: str, hypotheses: list[str], references: list[str]) -> Metric:
    return all_scores(hypotheses, references, "de", [name])[0]


HYPOTHESES = ["Das ist ein Test-Satz für alle.", "Der Hund läuft durch den Park.", "„Ja“, sagte sie z.B. gestern."]
REFERENCES = ["Das ist ein Test-Satz für uns alle.", "Der Hund rennt durch den Park.", "„Ja“, sagte er z.B. gestern."]
# Line separators, a zero-width joiner, combining marks, a right-to-left word, entities, full-width characters and tabs.
ODD_REFERENCES = [
    "Zeile\u2028Trenner und noch\u0085eine im selben Satz.",
    "Ein Emoji 👩\u200d🔬 und e\u0301 gegen é; «so» – und … so!",
    "שלום heißt Frieden &amp; &quot;mehr&quot;, 3,14 oder 1.000-mal.",
    "全角！ und\teinTab, <skipped>, 50% - 60 % …",
    "Kurz.",
]
ODD_HYPOTHESES = [
    "Zeile\u2028Trenner und eine im selben Satz.",
    "Ein Emoji 👩\u200d🔬 und é gegen é; «so» - und … so!",
    'שלום heißt Friede & "mehr", 3,14 oder 1.000-mal.',
    "全角! und einTab, 50% - 60% …",
    "",
]


def test_equals_the_sacrebleu_command(tmp_path):
    hypotheses, references = HYPOTHESES + ODD_HYPOTHESES, REFERENCES + ODD_REFERENCES
    for name, lines in (("hypotheses", hypotheses), ("references", references)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    command = [sys.executable, "-m", "sacrebleu", "references", "-i", "hypotheses", "-m", "bleu", "chrf", "-w", "6"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    for name, other in zip(("sacrebleu", "chrf"), json.loads(answer.stdout), strict=True):
        ours = metric(name, hypotheses, references)
        assert 0 < ours.score < 100
        assert ours.score == pytest.approx(other["score"], abs=1e-6)
        assert ours.signature == other["signature"]
        assert ours.num_sentences == len(references)


@pytest.mark.parametrize("text, language, tokens", [
    # As in replace-unicode-punctuation.perl: the closing German quote becomes ", the opening one is not listed.
    ("„Gut“, 'so' & <b>！", "de", "„ Gut \" , ' so ' & < b > !"),
    ("Das ist bzw. War es.", "de", "Das ist bzw. War es ."),
    ("Das ist bzw. War es.", "en", "Das ist bzw . War es ."),
])  # fmt: skip
def test_moses_tokenise(text, language, tokens):
    assert moses_tokenise([text], language) == [tokens]


def test_brevity_penalty_by_hand():
    """All precisions are 1. Split, `c-d` is 3 tokens, and 6 + 3 tokens are given for 7 + 6; else 4 + 3 for 5 + 4."""
    pair = ["a b c-d e", "f g h"], ["a b c-d e x", "f g h i-j"]
    assert metric("bleu_tok_split", *pair).score == pytest.approx(100 * math.exp(1 - 13 / 9))
    assert metric("bleu_tok", *pair).score == pytest.approx(100 * math.exp(1 - 9 / 7))


def ngrams(tokens: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[start : start + order]) for start in range(len(tokens) - order + 1))


def test_compound_split_bleu_equals_the_published_recipe():
    """The steps of get_ende_bleu.sh, and multi-bleu.perl's formula: exp(min(0, 1 - r / h)) times the geometric mean of
    the four clipped precisions.
    """
    tokenizer, normalizer = MosesTokenizer("de"), MosesPunctNormalizer()

    def steps(line):
        words = tokenizer.tokenize(normalizer.replace_unicode_punct(line), escape=False, return_str=True)
        return re.sub(r"(\S)-(\S)", lambda found: f"{found[1]} ##AT##-##AT## {found[2]}", words).split()

    hypotheses, references = [*HYPOTHESES, *ODD_HYPOTHESES[1:]], [*REFERENCES, *ODD_REFERENCES[1:]]
    pairs = [(steps(ours), steps(theirs)) for ours, theirs in zip(hypotheses, references, strict=True)]
    assert sum(tokens.count("##AT##-##AT##") for pair in pairs for tokens in pair) == 4
    logarithms = []
    for order in range(1, 5):
        matched = counted = 0
        for ours, theirs in pairs:
            matched += (ngrams(ours, order) & ngrams(theirs, order)).total()
            counted += max(len(ours) - order + 1, 0)
        logarithms.append(math.log(matched / counted))
    ours_length, theirs_length = (sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    assert ours_length < theirs_length  # else there is no brevity penalty
    expected = 100 * math.exp(1 - theirs_length / ours_length + sum(logarithms) / 4)
    assert metric("bleu_tok_split", hypotheses, references).score == pytest.approx(expected)
    assert metric("bleu_tok", hypotheses, references).score != pytest.approx(expected, abs=0.1)


def test_moses_bleu_is_not_smoothed():
    """all_scores also asserts that the scores of its counts, here with few or no matches, are sacreBLEU's own."""
    for words in ("", "x", "a", "a x", "a b", "v w x y", "x b c", "a b c x", "a b x d e"):
        found = {one.name: one.score for one in all_scores([words], ["a b c d e"], "de")}
        assert found["bleu_tok"] == found["bleu_tok_split"] == 0
    assert found["sacrebleu"] > 0


def test_language_codes():
    expected = {"de": "de", "DE": "de", "pt_BR": "pt", "zh-CN": "zh", "ja": "ja", "xx": "en", "": "en"}
    assert {code: moses_language(code) for code in expected} == expected
    assert "tok:moses-pt|" in all_scores(["a b"], ["a b"], "pt_BR", ["bleu_tok"])[0].signature


def test_all_scores_order_and_signatures():
    scores = all_scores(HYPOTHESES, REFERENCES, "de")
    assert [score.name for score in scores] == ["sacrebleu", "bleu_tok_split", "bleu_tok", "chrf", "exact_match"]
    assert scores[0].signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert scores[1].signature.startswith("nrefs:1|case:mixed|eff:no|tok:moses-de-compound_split|smooth:none|version:")
    assert "|sacremoses:" in scores[1].signature and "tok:moses-de|" in scores[2].signature
    assert all_scores(HYPOTHESES, REFERENCES, "de", ["chrf", "bleu_tok"]) == [scores[3], scores[2]]


def test_exact_match_by_hand():
    references = ["1 2 3", "1 2", "a B", "x"]
    found = metric("exact_match", ["1 2 3", "1 2 ", "a b", "x"], references)
    assert (found.name, found.score, found.num_sentences) == ("exact_match", 50.0, 4)
    assert found.signature == "nrefs:1|case:mixed|tok:none|unit:sentence"
    assert found.statistics.rows.tolist() == [[1, 1], [0, 1], [0, 1], [1, 1]]
    scores = [metric("exact_match", some, references).score for some in (["", "", "", ""], references)]
    assert scores == [0.0, 100.0]


def test_tokenised_text_logs_no_warning(caplog, capfd):
    with caplog.at_level(logging.DEBUG):
        all_scores(["Das ist so ."] * 200, ["Das ist so ."] * 200, "de")
    assert caplog.text == "" and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("hypotheses, references, message", [
    (["a"] * 10, ["a"] * 5, "^BLEU: 10 hypotheses for 5 references; line i of one must be"),
    ([], [], "^BLEU: 0 hypotheses and 0 references; give at least 1 sentence$"),
    (["a"] * 4, ["a", " ", "b", ""], "^BLEU: 2 of 4 references are empty, the first in line 2; remove"),
    ("abc", ["a", "b", "c"], "^BLEU: hypotheses is one string of 3 characters; give a list"),
    (["a", "b"], "ab", "^BLEU: references is one string of 2 characters; give a list"),
])  # fmt: skip
def test_invalid_input_is_an_error(hypotheses, references, message):
    with pytest.raises(DataError, match=message) as caught:
        all_scores(hypotheses, references, "de")
    assert "\n" not in str(caught.value)
