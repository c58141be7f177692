"""Typed configurations of all commands but train (rpr.config.train). Default values live in conf/."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt

from rpr.config.train import BleuTokenizer, DataConfig, HardwareConfig, LoggerConfig, ModelConfig, OptimConfig
from rpr.errors import Problem
from rpr.validation import Name, StrictModel


def _of_one_process(hardware: HardwareConfig) -> HardwareConfig:
    if hardware.num_ranks > 1:
        raise ValueError(f"devices: {hardware.name} is for training; this command has one process: choose cpu or 1xgpu")
    return hardware


OneProcess = Annotated[HardwareConfig, AfterValidator(_of_one_process)]


class OneRunConfig(StrictModel):
    """The settings of a command that loads one trained run; None is "as the run has it", or the default cache."""

    run: str = Field(min_length=1)
    average_checkpoints: PositiveInt | None
    cache_dir: str | None = Field(min_length=1)
    hardware: OneProcess


class SearchConfig(OneRunConfig):
    """How translations are searched; None is "as the run has it"."""

    beam_size: PositiveInt | None
    length_penalty: float | None = Field(ge=0)
    min_length: NonNegativeInt | None


class EvaluateConfig(SearchConfig):
    """rpr-cli evaluate; None is "as the run has it"."""

    splits: tuple[str, ...] | None = Field(min_length=1)
    bootstrap_samples: NonNegativeInt | None
    length_buckets: tuple[PositiveInt, ...] | None
    context_lengths: tuple[PositiveInt, ...] | None
    stride: PositiveInt | None
    text_tokens: PositiveInt | None
    matmul_precision: Literal["highest", "high", "medium"] | None
    bleu_tokenizer: BleuTokenizer | None
    position: dict[str, Any] | None
    format: Literal["table", "json"]


class TranslateConfig(SearchConfig):
    """rpr-cli translate; None is "as the run has it"."""

    input: str | None
    output: str | None
    matmul_precision: Literal["highest", "high", "medium"]
    lines_per_batch: PositiveInt


class SamplingConfig(StrictModel):
    """How prompts are continued, documented in conf/generate.yaml."""

    max_new_tokens: PositiveInt
    temperature: float = Field(ge=0)
    top_k: PositiveInt | None
    seed: int = Field(ge=0)
    num_samples: PositiveInt
    stop: str | None = Field(min_length=1)


class GenerateConfig(OneRunConfig, SamplingConfig):
    """rpr-cli generate; None is "as the run has it", or prompts from stdin."""

    prompt: str | None
    format: Literal["text", "json"]


class ExportConfig(OneRunConfig):
    """rpr-cli export; None is "as the run has it"."""

    format: Literal["safetensors", "ctranslate2", "transformers"]
    output_dir: str | None = Field(min_length=1)
    sentences: PositiveInt
    split: str


class CompareConfig(StrictModel):
    """rpr-cli compare: the first run, or a sweep's baseline, against the others."""

    runs: tuple[str, ...]
    sweep: str | None
    baseline: str | None = Field(min_length=1)
    splits: tuple[str, ...] | None = Field(min_length=1)
    metrics: tuple[Literal["sacrebleu", "bleu_tok", "bleu_tok_split", "chrf", "exact_match"], ...] | None = Field(
        min_length=1
    )
    bleu_tokenizer: BleuTokenizer | None
    samples: int = Field(ge=100)
    trials: int = Field(ge=100)
    seed: int = Field(ge=0)
    format: Literal["table", "json"]
    runs_dir: str = Field(min_length=1)

    def problems(self) -> Iterator[str | Problem]:
        if (self.sweep is None) == (len(self.runs) == 0) or len(self.runs) == 1:
            yield "runs and sweep: give the folders of at least two runs, or a sweep's name as sweep=..."
        if self.runs and self.baseline is not None:
            yield f"baseline: {self.baseline} is for sweep=; of runs the first one is the baseline"


class RerunConfig(StrictModel):
    """rpr-cli rerun; None is "as the record has it"."""

    run: str = Field(min_length=1)
    data_path: str | None = Field(min_length=1)
    cache_dir: str | None = Field(min_length=1)
    runs_dir: str = Field(min_length=1)


class DiffConfig(StrictModel):
    """rpr-cli diff: two runs, each a folder or the file of a record."""

    runs: tuple[str, ...] = Field(min_length=2, max_length=2)


class RunsConfig(StrictModel):
    """rpr-cli runs; `remove` names runs."""

    runs_dir: str = Field(min_length=1)
    remove: tuple[str, ...]
    format: Literal["table", "json"]


class DashboardConfig(StrictModel):
    """rpr-cli dashboard: a saved W&B report of a project's runs, or of one sweep's."""

    sweep: str | None
    title: str | None
    logger: LoggerConfig


class VerifyConfig(OneRunConfig):
    """rpr-cli verify."""

    sentences: PositiveInt
    split: str
    format: Literal["table", "json"]


class PrepareConfig(StrictModel):
    """rpr-cli prepare."""

    data: DataConfig
    format: Literal["table", "json"]


class ReportConfig(StrictModel):
    """rpr-cli report: on the records of one sweep, or of all; or, with `run`, on the positions of one trained run."""

    runs_dir: str = Field(min_length=1)
    sweep: Name | None
    baseline: str | None = Field(min_length=1)
    paper: bool | None
    output_dir: str = Field(min_length=1)
    title: str | None
    format: Literal["table", "json"]
    verbose: bool
    pdf: bool
    run: str | None
    average_checkpoints: PositiveInt | None
    validation_sentences: PositiveInt
    max_distance: PositiveInt
    cache_dir: str | None = Field(min_length=1)
    hardware: OneProcess

    def problems(self) -> Iterator[str | Problem]:
        if self.sweep is not None and self.run is not None:
            yield f"run and sweep: {self.run} and {self.sweep} are both given; remove one of them"


class BenchContext(StrictModel):
    """bench: what is measured by length."""

    lengths: tuple[PositiveInt, ...] = Field(min_length=1)
    positions: PositiveInt
    windows: tuple[PositiveInt, ...]


class BenchConfig(StrictModel):
    """rpr-cli bench."""

    model: ModelConfig
    data: DataConfig
    optim: OptimConfig
    hardware: OneProcess
    parts: tuple[Literal["step", "context", "attention"], ...] = Field(min_length=1)
    variants: tuple[str, ...] = Field(min_length=1)
    sentences: PositiveInt
    length: PositiveInt
    rounds: PositiveInt
    steps_per_round: PositiveInt
    context: BenchContext
    seed: int = Field(ge=0, lt=2**31)
    format: Literal["table", "json"]

    @property
    def longest(self) -> int:
        """Positions of the longest sequence in the parts to be measured."""
        joined = 2 if self.model.architecture == "decoder_only" else 1  # source, target
        step = joined * self.length if "step" in self.parts else 0
        return max([step, *(self.context.lengths if self.parts != ("step",) else ())])

    def problems(self) -> Iterator[str | Problem]:
        if "context" in self.parts and self.model.architecture != "decoder_only":
            yield "parts: context is of decoder-only models; add model.architecture=decoder_only"
        if self.hardware.precision == "64":
            yield "hardware.precision: bench supports 32 and bf16; choose one"
