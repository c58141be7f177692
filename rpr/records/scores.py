"""What a record says of a run's translations: scores, each with all that is needed to read it.

A record has some fifty of these objects, and a report has thousands of records: they are dataclasses with slots, much
smaller than pydantic's models, read and checked by pydantic all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

if TYPE_CHECKING:
    from rpr.config.train import EvaluationConfig

HEADLINE_METRIC = "sacrebleu"
EXACT_MATCH = "exact_match"
METRIC_NAMES = {
    "sacrebleu": "sacreBLEU",
    "chrf": "chrF",
    "bleu_tok_split": "BLEU, Moses tokens, compounds split",
    "bleu_tok": "bleu_tok",  # in words it would be the start of the one above, and read for it
    EXACT_MATCH: "exact match",
}
SPLITS = ("test", "long", "validation")
SOURCE_UNIT = "pieces of the source, EOS included"
# Of every part of a record: extra keys refused, and NaN or infinity is no measurement.
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
AtLeastOne = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True, config=STRICT)
class Interval:
    """Where a number would be if it were measured again; `level` 0.95 is 95%, and 1 is the whole range.

    `kind` says over what: "sentences" (other test sentences like these, the same training), "seeds" (other trainings)
    or "rounds" (of a benchmark).

    `method` is that of an interval over sentences, `samples` and `seed` those of a bootstrap; else None.
    """

    low: float
    high: float
    level: Annotated[float, Field(gt=0, le=1)]
    kind: Literal["sentences", "seeds", "rounds"]
    samples: AtLeastOne | None = None
    seed: int | None = None
    method: str | None = None

    @property
    def how(self) -> str:
        """The method, with the samples and the seed of a bootstrap."""
        drawn = "" if self.samples is None else f", {self.samples:,} samples, seed {self.seed}"
        return f"{self.method}{drawn}"


def _over_sentences(interval: Interval) -> Interval:
    if interval.kind != "sentences" or interval.method is None or (interval.samples is None) != (interval.seed is None):
        raise ValueError(
            "an interval of a record is over sentences, with its method; a bootstrap's with samples and seed"
        )
    return interval


# A record is of one training: it can have no other kind.
SentenceInterval = Annotated[Interval, AfterValidator(_over_sentences)]


@dataclass(frozen=True, slots=True, config=STRICT)
class Score:
    """One number of one metric on one test set, with all that is needed to read it."""

    split: str
    test_set: str
    metric: str
    score: float
    signature: str
    num_sentences: AtLeastOne
    checkpoint: str
    beam_size: AtLeastOne
    length_penalty: float
    precision: str | None = None
    interval: SentenceInterval | None = None  # None in records of before there was one
    empty_hypotheses: Annotated[int, Field(ge=0)] | None = None  # scored as they are: they match nothing
    min_length: Annotated[int, Field(ge=0)] = 0  # pieces that were decoded before EOS was allowed


def search_in_words(search: Score | ByLength | EvaluationConfig) -> str:
    """`beam 4, length penalty 0.6`, and the minimum length where there is one."""
    least = f", minimum length {search.min_length}" if search.min_length else ""
    return f"beam {search.beam_size}, length penalty {search.length_penalty:g}{least}"


def pooled(names: Sequence[str]) -> str:
    """`test`; `test and long together`."""
    return names[0] if len(names) == 1 else f"{' and '.join(names)} together"


def length_label(shortest: int, longest: int | None) -> str:
    """`11–20`, `25` for one length alone, `over 80` where there is no longest."""
    if shortest == longest:
        return str(shortest)
    return f"over {shortest - 1}" if longest is None else f"{shortest}–{longest}"


@dataclass(frozen=True, slots=True, config=STRICT)
class LengthScore:
    """One metric on the sentences of one bucket."""

    metric: str
    score: float
    interval: SentenceInterval | None


@dataclass(frozen=True, slots=True, config=STRICT)
class LengthBucket:
    """The test sentences whose source has `shortest` to `longest` pieces (None: any number more), EOS included."""

    shortest: AtLeastOne
    longest: int | None
    beyond_training: bool  # all of them longer than every training source
    num_sentences: AtLeastOne
    scores: tuple[LengthScore, ...]

    @property
    def label(self) -> str:
        return length_label(self.shortest, self.longest)

    @property
    def key(self) -> tuple[int, int]:
        """What tells it from other buckets, in their order."""
        return (self.shortest, self.longest or 0)


@dataclass(frozen=True, slots=True, config=STRICT)
class ByLength:
    """Scores by length in `unit`, all scored test splits together; buckets without a sentence are left out. The length
    is the source's, `longest_training_source` the longest of training; of a generated task, both are the task's own.
    """

    unit: str
    splits: tuple[str, ...]
    test_sets: tuple[str, ...]
    longest_training_source: AtLeastOne
    signatures: dict[str, str]  # of each metric
    checkpoint: str
    beam_size: AtLeastOne
    length_penalty: float
    precision: str | None
    buckets: tuple[LengthBucket, ...]
    min_length: Annotated[int, Field(ge=0)] = 0

    @property
    def axis(self) -> str:
        """What the buckets are of."""
        return "source length" if self.unit == SOURCE_UNIT else "length"

    @property
    def longest_in_words(self) -> str:
        """What a bucket beyond the training lengths has."""
        longest = self.longest_training_source
        if self.unit == SOURCE_UNIT:
            return f"longer than any source of the training data, whose longest has {longest}"
        return f"longer than any example of the training data, whose longest has {longest} {self.unit}"
