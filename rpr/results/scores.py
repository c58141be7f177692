"""What a record says of a run's translations: scores, each with all that is needed to read it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of the record: frozen, extra keys refused, and NaN or infinity is no measurement."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class Interval(Section):
    """Where a score lies over other test sentences like these; `level` 0.95 is 95%. It is not about other trainings."""

    low: float
    high: float
    level: float = Field(gt=0, lt=1)
    samples: int = Field(ge=1)
    seed: int
    method: str


class Score(Section):
    """One number of one metric on one test set, with all that is needed to read it."""

    split: str
    test_set: str
    metric: str
    score: float
    signature: str
    num_sentences: int = Field(ge=1)
    checkpoint: str
    beam_size: int = Field(ge=1)
    length_penalty: float
    precision: str | None = None
    interval: Interval | None = None  # None in records of before there was one
    empty_hypotheses: int | None = Field(default=None, ge=0)  # scored as they are: they match nothing


def pooled(names: Sequence[str]) -> str:
    """`test`; `test and long together`."""
    return names[0] if len(names) == 1 else f"{' and '.join(names)} together"


def length_label(shortest: int, longest: int | None) -> str:
    """`11–20`, `25` for one length alone, `over 80` where there is no longest."""
    if shortest == longest:
        return str(shortest)
    return f"over {shortest - 1}" if longest is None else f"{shortest}–{longest}"


class LengthScore(Section):
    """One metric on the sentences of one bucket."""

    metric: str
    score: float
    interval: Interval | None


class LengthBucket(Section):
    """The test sentences whose source has `shortest` to `longest` pieces (None: any number more), EOS included."""

    shortest: int = Field(ge=1)
    longest: int | None
    beyond_training: bool  # all of them longer than every training source
    num_sentences: int = Field(ge=1)
    scores: tuple[LengthScore, ...]

    @property
    def label(self) -> str:
        return length_label(self.shortest, self.longest)


class ByLength(Section):
    """Scores by the length of the source, all scored test splits together; buckets without a sentence are left out."""

    unit: str
    splits: tuple[str, ...]
    test_sets: tuple[str, ...]
    longest_training_source: int = Field(ge=1)
    signatures: dict[str, str]  # of each metric
    checkpoint: str
    beam_size: int = Field(ge=1)
    length_penalty: float
    precision: str | None
    buckets: tuple[LengthBucket, ...]
