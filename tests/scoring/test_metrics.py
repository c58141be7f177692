"""sacreBLEU and chrF against the sacrebleu command; the paper group's protocol by hand and by multi-bleu's formula."""

import json
import math
import re
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext

import pytest
from sacrebleu.metrics.bleu import BLEU

from rpr.compose.composition import compose_train
from rpr.errors import DataError
from rpr.scoring.metrics import Metric, all_scores, bleu_tokenizer, check_tokenizer, moses_language


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


def ngrams(tokens: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[start : start + order]) for start in range(len(tokens) - order + 1))


def test_compound_split_bleu_equals_the_published_recipe():
    """The steps of get_ende_bleu.sh, and multi-bleu.perl's formula: exp(min(0, 1 - r / h)) times the geometric mean of
    the four clipped precisions.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # takes most of a second

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
    for words in ("", "x", "a b", "v w x y", "a b c x", "a b x d e"):
        found = {one.name: one.score for one in all_scores([words], ["a b c d e"], "de")}
        assert found["bleu_tok"] == found["bleu_tok_split"] == 0
    assert found["sacrebleu"] > 0


@pytest.mark.parametrize("codes, moses, tokenizer", [
    ("de DE de-AT deu deu_Latn ger german", "de de de de de de en", "13a"),
    ("pt_BR fra fre fr-CA fra_Latn xx target", "pt fr fr fr fr en en", "13a"),
    ("zh zho zh-CN zh_TW ZHO_Hant cmn chi yue_Hant", "zh " * 8, "zh"),
    ("ja jpn jpn_Jpan ja-JP", "en " * 4, "ja-mecab"),
    ("ko kor kor_Hang", "ko " * 3, "ko-mecab"),
])  # fmt: skip
def test_language_codes(codes, moses, tokenizer):
    assert [moses_language(code) for code in codes.split()] == moses.split()
    assert {bleu_tokenizer(code) for code in codes.split()} == {tokenizer}
    assert {bleu_tokenizer(code, "intl") for code in codes.split()} == {"intl"}


CHINESE = ["菲伊认识那只狗。", "我们明天去北京，你们呢？", "他 在 iPhone 上 读 书 。"]
THAI = ["ฉันชอบสุนัขตัวนั้น", "เขาไปกรุงเทพพรุ่งนี้"]
PARTLY_CHINESE = ["菲伊认识这只狗。", "我们今天去北京，你们呢？", "他在 iPhone 上看书。"]


@pytest.mark.parametrize("language, references, hypotheses, tokenizer", [
    ("cmn_Hans", CHINESE, PARTLY_CHINESE, "zh"),
    ("th", THAI, [THAI[0], THAI[1][:-4]], "char"),
])  # fmt: skip
def test_languages_without_spaces(language, references, hypotheses, tokenizer):
    """As the sacrebleu command with that tokenizer; BLEU of words between spaces is not computed."""
    setting = "char" if tokenizer == "char" else "auto"
    perfect = all_scores(references, references, language, tokenizer=setting)
    assert {one.name: round(one.score, 6) for one in perfect} == {"sacrebleu": 100, "chrf": 100, "exact_match": 100}
    assert f"|tok:{tokenizer}|" in perfect[0].signature
    [found] = all_scores(hypotheses, references, language, ["sacrebleu"], setting)
    theirs = BLEU(tokenize=tokenizer)
    assert 0 < found.score < 100 and found.score == theirs.corpus_score(hypotheses, [references]).score
    assert found.signature == str(theirs.get_signature())
    for name in ("bleu_tok", "bleu_tok_split"):
        with pytest.raises(DataError, match=f"^{name}: counts words between spaces, which {language} does not have"):
            all_scores(references, references, language, ["chrf", name], setting)


@pytest.mark.parametrize("language, setting, text, refused", [
    ("tgt", "auto", CHINESE, True), ("de", "auto", THAI, True), ("tgt", "char", CHINESE, False),
    ("tgt", "auto", ["Das Zeichen 狗 ist ein Hund."], False), ("tgt", "auto", ["그는 내일 서울에 갑니다."], False),
])  # fmt: skip
def test_text_without_spaces_under_an_unknown_language(language, setting, text, refused):
    settings = ["data=custom", "data.path=x", f"data.target_language={language}"]
    config = compose_train([*settings, f"evaluation.bleu_tokenizer={setting}"])
    with pytest.raises(DataError, match=f"^data.target_language: .* of {language} ") if refused else nullcontext():
        check_tokenizer(config, text)


@pytest.mark.parametrize("references, tokenizer, tokenised", [
    (["Das ist so ."] * 3 + ["Ja ."], "auto", 4),
    (["Das ist so .", "Ja .", "Nein.", "Was ?"], "auto", 2),
    (["Das ist so .", *["Ja!"] * 10], "auto", None),
    (["Das ist so ."], "none", None),
])  # fmt: skip
def test_references_that_look_tokenised(references, tokenizer, tokenised):
    [found] = all_scores(references, references, "de", ["sacrebleu"], tokenizer)
    assert found.tokenised == tokenised
    assert ("|tok:none|" in found.signature) == (tokenizer == "none")


def test_exact_match_by_hand():
    found = metric("exact_match", ["1 2 3", "1 2 ", "a b", "x"], ["1 2 3", "1 2", "a B", "x"])
    assert (found.score, found.signature) == (50.0, "nrefs:1|case:mixed|tok:none|unit:sentence")
    assert found.statistics.rows.tolist() == [[1, 1], [0, 1], [0, 1], [1, 1]]


@pytest.mark.parametrize("hypotheses, references, message", [
    (["a"] * 10, ["a"] * 5, "^BLEU: 10 hypotheses for 5 references; line i of one must be"),
    ([], [], "^BLEU: 0 hypotheses for 0 references; line i"),
    (["a"] * 4, ["a", " ", "b", ""], "^BLEU: 2 of 4 references are empty, the first in line 2; remove"),
])  # fmt: skip
def test_invalid_input_is_an_error(hypotheses, references, message):
    with pytest.raises(DataError, match=message):
        all_scores(hypotheses, references, "de")
