"""What a record says of a run's translations: scores, each with all that is needed to read it.

A record has some fifty of these objects, and a report has thousands of records: they are dataclasses with slots, much
smaller than pydantic's models, read and checked by pydantic all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

HEADLINE_METRIC = "sacrebleu"
METRIC_NAMES = {
    "sacrebleu": "sacreBLEU",
    "chrf": "chrF",
    "bleu_tok_split": "BLEU, Moses tokens, compounds split",
    "bleu_tok": "bleu_tok",  # in words it would be the start of the one above, and read for it
}
SPLITS = ("test", "long", "validation")
# Of every part of a record: extra keys refused, and NaN or infinity is no measurement.
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
AtLeastOne = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True, config=STRICT)
class Interval:
    """Where a number would be if it were measured again; `level` 0.95 is 95%, and 1 is the whole range.

    `kind` says over what: "sentences" (other test sentences like these, the same training), "seeds" (other trainings)
    or "rounds" (of a benchmark).

    `samples`, `seed` and `method` are those of the bootstrap over sentences; None for the other kinds.
    """

    low: float
    high: float
    level: Annotated[float, Field(gt=0, le=1)]
    kind: Literal["sentences", "seeds", "rounds"]
    samples: AtLeastOne | None = None
    seed: int | None = None
    method: str | None = None


def _bootstrapped(interval: Interval) -> Interval:
    if interval.kind != "sentences" or None in (interval.samples, interval.seed, interval.method):
        raise ValueError("an interval of a record is over sentences, with samples, seed and method")
    return interval


# A record is of one training: it can have no other kind.
SentenceInterval = Annotated[Interval, AfterValidator(_bootstrapped)]


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


@dataclass(frozen=True, slots=True, config=STRICT)
class ByLength:
    """Scores by the length of the source, all scored test splits together; buckets without a sentence are left out."""

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
