"""The scores of a run's translations in its record, each with everything needed to interpret it.

A record has some fifty of these objects, and a report thousands of records: they are dataclasses with slots, much
smaller than pydantic models, but still parsed and validated by pydantic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from rpr.io.escape import escape_control_characters
from rpr.kinds import TASK, TEXT, TRANSLATION, kind_of_metric

if TYPE_CHECKING:
    from rpr.config.train import EvaluationConfig

HEADLINE_METRIC, EXACT_MATCH, BITS_PER_BYTE = TRANSLATION.metric, TASK.metric, TEXT.metric
METRIC_NAMES = {
    "sacrebleu": "sacreBLEU",
    "chrf": "chrF",
    "bleu_tok_split": "BLEU, Moses tokens, compounds split",
    "bleu_tok": "bleu_tok",  # in words it would be a prefix of the one above, and be mistaken for it
    EXACT_MATCH: "exact match",
    BITS_PER_BYTE: "bits per byte",
}
PERCENTAGES = METRIC_NAMES.keys() - {BITS_PER_BYTE}  # between 0 and 100
SPLITS = ("test", "long", "validation")
OVER_DOCUMENTS = "percentile bootstrap over documents"  # the method of intervals of such scores
SOURCE_UNIT = "pieces of the source, EOS included"
# For every part of a record: no extra keys, and no NaN or infinity, which are not measurements.
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
AtLeastOne = Annotated[int, Field(ge=1)]
Text = Annotated[str, AfterValidator(escape_control_characters)]  # which a terminal may show


@dataclass(frozen=True, slots=True, config=STRICT)
class Interval:
    """A confidence interval; `level` 0.95 is 95%. `kind` is what varies: "sentences" (other ones like these, the same
    training) or "seeds" (other trainings). `method` is set for an interval over sentences, or over seeds if it is not
    Student's t of the values themselves; `samples` and `seed` for a bootstrap.
    """

    low: float
    high: float
    level: Annotated[float, Field(gt=0, le=1)]
    kind: Literal["sentences", "seeds"]
    samples: AtLeastOne | None = None
    seed: int | None = None
    method: Text | None = None

    @property
    def unit(self) -> str:
        return "documents" if self.method == OVER_DOCUMENTS else "sentences"

    @property
    def how(self) -> str:
        drawn = "" if self.samples is None else f", {self.samples:,} samples, seed {self.seed}"
        return f"{self.method}{drawn}"


@dataclass(frozen=True, slots=True, config=STRICT)
class Score:
    """The score of one metric on one test set, with everything needed to interpret it."""

    split: Text
    test_set: Text
    metric: Text
    score: float
    signature: Text
    num_sentences: AtLeastOne
    checkpoint: Text
    beam_size: AtLeastOne
    length_penalty: float
    precision: Text | None = None
    interval: Interval | None = None  # None in older records
    empty_hypotheses: Annotated[int, Field(ge=0)] | None = None  # included in the score: they match nothing
    # That ended at evaluation.max_extra_length, before EOS, and are scored as they are; None in older records.
    unfinished_hypotheses: Annotated[int, Field(ge=0)] | None = None
    min_length: Annotated[int, Field(ge=0)] = 0  # pieces decoded before EOS was allowed
    tokenised_references: AtLeastOne | None = None  # that end in " .", if the references look tokenised

    @property
    def way(self) -> tuple[Any, ...]:
        """What scores must share to be comparable."""
        return (self.signature, self.num_sentences, *_decoding(self), self.test_set)


def counted(number: int | str, metric: str) -> str:
    """`1,000 sentences`, or `1 document` for a metric of documents."""
    noun = kind_of_metric(metric).items.removesuffix("s")
    text = f"{number:,}" if isinstance(number, int) else number
    return f"{text} {noun}{'' if text == '1' else 's'}"


def search_in_words(search: Score | ByLength | EvaluationConfig) -> str:
    """`beam 4, length penalty 0.6`, and the minimum length if there is one."""
    least = f", minimum length {search.min_length}" if search.min_length else ""
    return f"beam {search.beam_size}, length penalty {search.length_penalty:g}{least}"


def hypotheses_note(empty: int | None, unfinished: int | None = None) -> tuple[str, ...]:
    """A cell's notes on translations that are no whole ones, if there are any."""
    counts = ((empty, "are empty"), (unfinished, "are cut off at the length limit, evaluation.max_extra_length"))
    return tuple(f"{count:,} translation{'s' * (count > 1)} {what}" for count, what in counts if count)


def tokenised_in_words(references: int) -> str:
    """What it means for sacreBLEU that so many references end in a separate full stop."""
    return (
        f"{references:,} references end in ' .': the corpus looks tokenised, so its BLEU is not that of detokenised "
        "text, which is published; detokenise the corpus, or choose bleu_tokenizer=none, which the signature shows"
    )


def pooled(names: Sequence[str]) -> str:
    """`test`; `test and long together`."""
    return names[0] if len(names) == 1 else f"{' and '.join(names)} together"


@dataclass(frozen=True, slots=True, config=STRICT)
class LengthScore:
    """One metric on the sentences of one bucket."""

    metric: Text
    score: float
    interval: Interval | None


@dataclass(frozen=True, slots=True, config=STRICT)
class LengthBucket:
    """The test sentences whose source has `shortest` to `longest` pieces (None: no upper limit), EOS included."""

    shortest: AtLeastOne
    longest: int | None
    beyond_training: bool  # all of them longer than every training source
    num_sentences: AtLeastOne
    scores: tuple[LengthScore, ...]

    @property
    def label(self) -> str:
        """`11–20`; `25` for a single length; `over 80` if there is no longest."""
        if self.shortest == self.longest:
            return str(self.shortest)
        return f"over {self.shortest - 1}" if self.longest is None else f"{self.shortest}–{self.longest}"

    @property
    def key(self) -> tuple[int, int]:
        return (self.shortest, self.longest or 0)


@dataclass(frozen=True, slots=True, config=STRICT)
class ByLength:
    """Scores by length in `unit`, over all scored test splits together, without empty buckets. Lengths are those of the
    source, and `longest_training_source` is the longest in training; a generated task has its own definition of both.
    """

    unit: Text
    splits: tuple[Text, ...]
    test_sets: tuple[Text, ...]
    longest_training_source: AtLeastOne
    signatures: dict[Text, Text]  # of each metric
    checkpoint: Text
    beam_size: AtLeastOne
    length_penalty: float
    precision: Text | None
    buckets: tuple[LengthBucket, ...]
    min_length: Annotated[int, Field(ge=0)] = 0

    @property
    def axis(self) -> str:
        return "source length" if self.unit == SOURCE_UNIT else "length"

    @property
    def longest_in_words(self) -> str:
        longest = self.longest_training_source
        if self.unit == SOURCE_UNIT:
            return f"longer than any source of the training data, whose longest has {longest}"
        return f"longer than any example of the training data, whose longest has {longest} {self.unit}"

    def way(self, metric: str) -> tuple[Any, ...]:
        """What scores by length must share to be comparable."""
        text = (self.splits, self.test_sets, self.longest_training_source)
        return (self.signatures.get(metric), *_decoding(self), *text)


@dataclass(frozen=True, slots=True, config=STRICT)
class ContextScore:
    """Bits per byte of windows of `length` tokens. `separate`: windows side by side, in which every token is scored;
    `sliding`: one every `stride` tokens, of which the last ones are scored.
    """

    windows: Literal["separate", "sliding"]
    length: AtLeastOne
    bits_per_byte: float
    num_bytes: AtLeastOne
    interval: Interval | None


@dataclass(frozen=True, slots=True, config=STRICT)
class PositionScore:
    """Bits per byte of the tokens at positions `first` to `last` (from 1) of separate windows of the longest length."""

    first: AtLeastOne
    last: AtLeastOne
    bits_per_byte: float


@dataclass(frozen=True, slots=True, config=STRICT)
class ByContext:
    """Bits per byte by the length of the context: the same bytes of the same documents for every length."""

    split: Text
    test_set: Text
    training_length: AtLeastOne
    num_bytes: AtLeastOne
    num_tokens: AtLeastOne
    num_documents: AtLeastOne
    stride: int | None
    checkpoint: Text
    precision: Text | None
    scores: tuple[ContextScore, ...]
    by_position: tuple[PositionScore, ...]

    @property
    def way(self) -> tuple[tuple[str, Any], ...]:
        """What scores must share to be comparable, by name; those of sliding windows also the stride. The longest
        context decides which bytes are scored.
        """
        names = ("test_set", "num_bytes", "num_documents", "training_length")
        longest = max((windows.length for windows in self.scores), default=0)
        arithmetic = ("precision", self.precision or "32")
        return (*((name, getattr(self, name)) for name in names), arithmetic, ("longest context", longest))


def _decoding(score: Score | ByLength) -> tuple[Any, ...]:
    return score.beam_size, score.length_penalty, score.min_length, score.precision or "32"
