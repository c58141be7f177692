"""The typed configuration: ranges and rules across fields.

Default values live in conf/, never here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from rpr.migrations import EARLIER_DEFAULTS, RENAMED, with_earlier_defaults
from rpr.model.positions import AnyPositions, Site
from rpr.validation import Section, validated

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
WIDEST_TRITON_HEAD = 256
LONGEST_NAME = 200  # characters; file systems take 255, and a run's id and what is put behind it count too


class RelativeDefaults(Section):
    """What the paper uses for this size of model; conf/position/*.yaml takes its defaults from here."""

    clip_distance: int = Field(ge=0)
    tables: Literal["per_head", "shared_by_heads", "shared_by_heads_and_layers"]


class ModelConfig(Section):
    """Size and shape of the encoder-decoder Transformer."""

    name: str
    num_layers: PositiveInt
    d_model: PositiveInt
    num_heads: PositiveInt
    d_ff: PositiveInt
    dropout: float = Field(ge=0, lt=1)
    norm: Literal["post", "pre"]
    norm_epsilon: PositiveFloat
    relative_defaults: RelativeDefaults

    @model_validator(mode="after")
    def heads_divide_the_width(self) -> ModelConfig:
        if self.d_model % self.num_heads:
            divisors = [str(n) for n in range(1, min(self.d_model, 64) + 1) if self.d_model % n == 0]
            raise ValueError(
                f"num_heads: {self.num_heads} does not divide model.d_model = {self.d_model}; "
                f"choose one of {', '.join(divisors)}"
            )
        if self.d_model % 2:
            raise ValueError(f"d_model: {self.d_model} is odd; sinusoids come in pairs: choose an even width")
        return self


class SyntheticConfig(Section):
    """Sizes of the generated corpus, in sentence pairs; all pairs are distinct, within and across the splits."""

    seed: int = Field(ge=0)
    num_train: PositiveInt
    num_validation: PositiveInt
    num_test: PositiveInt
    num_long: PositiveInt


class TaskConfig(Section):
    """Pairs made by a rule (rpr/data/tasks.py). Lengths count what `UNITS` says of the kind; train, validation and test
    have lengths up to `max_train_length`, long those beyond it, up to `max_long_length`.
    """

    kind: Literal["copy", "reverse", "duplicate", "addition", "scan"]
    seed: int = Field(ge=0)
    max_train_length: PositiveInt
    max_long_length: PositiveInt
    padded_digits: PositiveInt | None
    num_train: PositiveInt | None
    num_validation: PositiveInt
    num_test: PositiveInt
    num_long: PositiveInt | None

    @model_validator(mode="after")
    def lengths_and_numbers_fit_the_kind(self) -> TaskConfig:
        if self.max_long_length <= self.max_train_length:
            raise ValueError(
                f"max_long_length: {self.max_long_length} leaves no length beyond max_train_length = "
                f"{self.max_train_length}; choose {self.max_train_length + 1} or more"
            )
        if self.padded_digits is not None and self.kind != "addition":
            raise ValueError(f"padded_digits: {self.kind} has no numbers to pad; set it to null")
        if self.padded_digits is not None and self.padded_digits <= self.max_long_length:
            raise ValueError(
                f"padded_digits: {self.padded_digits} cannot hold a sum of two numbers of max_long_length = "
                f"{self.max_long_length} digits; choose {self.max_long_length + 1} or more"
            )
        for name in () if self.kind == "scan" else ("num_train", "num_long"):
            if getattr(self, name) is None:
                raise ValueError(f"{name}: only scan has a finite number of pairs to take all of; give a number")
        return self


class DataConfig(Section):
    """Where sentence pairs come from and how they become batches of pieces."""

    name: str
    source_language: str
    target_language: str
    synthetic: SyntheticConfig | None
    task: TaskConfig | None
    hub: str | None
    hub_config: str | None
    path: str | None
    validation_name: str
    test_name: str
    tokenizer: Literal["bpe", "word"]
    vocabulary_size: int = Field(ge=5, le=1_000_000)
    max_length: int = Field(ge=2)
    train_limit: PositiveInt | None
    cache_dir: str = Field(min_length=1)

    @model_validator(mode="after")
    def one_source(self) -> DataConfig:
        if self.source_language == self.target_language:
            raise ValueError(
                f"source_language and target_language are both {self.source_language!r}; a pair has two languages"
            )
        for key in ("source_language", "target_language", "hub_config"):
            name = getattr(self, key)
            if name is not None and (len(name) > LONGEST_NAME or not NAME.fullmatch(name)):
                raise ValueError(f"{key}: {name[:40]!r} is part of a file's name, e.g. en; it cannot lead elsewhere")
        if self.synthetic is not None and self.task is not None:
            raise ValueError("task: the corpus is generated by data.synthetic already; set one of them to null")
        if self.generated and self.path is not None:
            corpus = "the synthetic corpus" if self.synthetic is not None else f"the {self.name} corpus"
            raise ValueError(f"path: {corpus} is generated, not read; choose another data= with data.path")
        if not self.generated and self.hub is None and self.path is None:
            raise ValueError(
                f"path: {self.name} is not on a hub; give the folder or the pair of line files as data.path=..."
            )
        return self

    @property
    def generated(self) -> bool:
        """Whether the pairs are made, not read."""
        return self.synthetic is not None or self.task is not None


class OptimConfig(Section):
    """The recipe: how many steps of how many tokens, the schedule, and which checkpoints count."""

    name: str
    max_steps: PositiveInt
    warmup_steps: PositiveInt
    learning_rate_scale: PositiveFloat
    adam_beta1: float = Field(ge=0, lt=1)
    adam_beta2: float = Field(ge=0, lt=1)
    adam_epsilon: PositiveFloat
    label_smoothing: float = Field(ge=0, lt=1)
    max_tokens_per_microbatch: PositiveInt
    microbatches_per_step: PositiveInt
    gradient_clip_norm: PositiveFloat | None
    checkpoint_every_n_steps: PositiveInt | None
    checkpoint_every_n_minutes: PositiveFloat | None
    keep_checkpoints: PositiveInt
    average_checkpoints: PositiveInt
    ema_decay: float | None = Field(gt=0, lt=1)
    validate_every_n_steps: PositiveInt
    non_finite: Literal["stop", "skip"]

    @model_validator(mode="after")
    def checkpoints_exist_to_average(self) -> OptimConfig:
        if (self.checkpoint_every_n_steps is None) == (self.checkpoint_every_n_minutes is None):
            raise ValueError(
                "checkpoint_every_n_steps and optim.checkpoint_every_n_minutes: "
                "set exactly one of them, the other to null"
            )
        if self.average_checkpoints > self.keep_checkpoints:
            raise ValueError(
                f"average_checkpoints: {self.average_checkpoints} is more than the "
                f"optim.keep_checkpoints = {self.keep_checkpoints} that are kept; raise keep_checkpoints"
            )
        if self.ema_decay is not None and self.average_checkpoints > 1:
            raise ValueError(
                f"ema_decay: {self.ema_decay} keeps a moving average and optim.average_checkpoints = "
                f"{self.average_checkpoints} averages checkpoints; set it to 1, or optim.ema_decay=null"
            )
        return self


class HardwareConfig(Section):
    """Where it runs. Nothing here changes what is learned beyond the rounding of its precision."""

    name: str
    accelerator: Literal["cpu", "gpu"]
    devices: PositiveInt
    num_nodes: PositiveInt
    precision: Literal["64", "32", "bf16"]
    matmul_precision: Literal["auto", "highest", "high", "medium"]
    attention: Literal["auto", "dense", "blockwise", "composed", "compiled", "triton"]
    num_workers: int = Field(ge=0)
    threads: PositiveInt | None

    @field_validator("precision", mode="before")
    @classmethod
    def precision_is_a_word(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) else value

    @model_validator(mode="after")
    def triton_needs_a_gpu(self) -> HardwareConfig:
        if self.attention == "triton" and self.accelerator == "cpu":
            raise ValueError("attention: triton needs a GPU; choose attention=auto, or hardware=1xgpu")
        return self

    @property
    def num_ranks(self) -> int:
        return self.devices * self.num_nodes


class LoggerConfig(Section):
    """Weights & Biases; the local record is always written."""

    mode: Literal["online", "offline", "none"]
    project: str
    entity: str | None
    tags: tuple[str, ...]
    artifacts: Literal["none", "results", "checkpoint"]
    system_metrics: bool
    finish_timeout_seconds: PositiveFloat


class EvaluationConfig(Section):
    """How sentences are translated and scored."""

    beam_size: PositiveInt
    length_penalty: float = Field(ge=0)
    max_extra_length: int = Field(ge=0)
    min_length: int = Field(ge=0)
    max_tokens_per_batch: PositiveInt
    validation_sentences: int = Field(ge=0)
    test_splits: tuple[Literal["test", "long", "validation"], ...]  # the data may have no "long"
    matmul_precision: Literal["highest", "high", "medium"] | None
    bootstrap_samples: int = Field(ge=0)
    length_buckets: tuple[PositiveInt, ...]

    @model_validator(mode="after")
    def edges_ascend(self) -> EvaluationConfig:
        edges = list(self.length_buckets)
        if edges != sorted(set(edges)):
            raise ValueError(f"length_buckets: {edges} do not ascend; give lengths like [10,20,40], or [] for none")
        if len(set(self.test_splits)) < len(self.test_splits):
            raise ValueError(f"test_splits: [{','.join(self.test_splits)}] names a split twice; name each once")
        return self


class TrainConfig(Section):
    """Everything one run is made of; conf/train.yaml holds every default."""

    model: ModelConfig
    position: AnyPositions
    data: DataConfig
    optim: OptimConfig
    hardware: HardwareConfig
    logger: LoggerConfig
    evaluation: EvaluationConfig
    seed: int = Field(ge=0, lt=2**31)
    name: str | None
    stop_after_minutes: PositiveFloat | None
    sweep: str | None
    runs_dir: str = Field(min_length=1)

    @model_validator(mode="after")
    def names_are_folder_names(self) -> TrainConfig:
        parts = {"data.name": self.data.name, "model.name": self.model.name, "position.name": self.position.name}
        for key, name in {"name": self.name, "sweep": self.sweep, **parts}.items():
            if name is not None and not NAME.fullmatch(name):
                raise ValueError(
                    f"{key}: {name!r} cannot name a folder; "
                    "use letters, digits, '.', '_' and '-', the first a letter or digit"
                )
        for key, name in (("name", self.label), ("sweep", self.sweep or "")):
            if len(name) > LONGEST_NAME:
                raise ValueError(
                    f"{key}: {name[:20]}... has {len(name)} characters; a folder's has {LONGEST_NAME} at most"
                )
        units, ranks = self.optim.microbatches_per_step, self.hardware.num_ranks
        if units % ranks and ranks % units:
            raise ValueError(
                f"hardware: {ranks} devices cannot share optim.microbatches_per_step = {units} equally; "
                "choose a number that divides it or is a multiple of it"
            )
        return self

    @model_validator(mode="after")
    def positions_fit_the_model(self) -> TrainConfig:
        one = self.position.encoder == self.position.decoder
        for causal, scheme in ((False, self.position.encoder), (True, self.position.decoder)):
            site = Site(self.model.num_layers, self.model.num_heads, self.model.d_model, causal)
            usual = self.model.relative_defaults.model_dump()
            if problem := scheme.problem(site) or scheme.unused_setting(usual):
                side = "decoder" if causal else "encoder"
                whole = f"position.{problem}"
                raise ValueError(whole if one else whole.replace("position.", f"position.{side}."))
            if self.hardware.attention == "triton" and scheme.has_bias:
                raise ValueError(
                    f"hardware.attention: triton adds no bias to scores, as position={scheme.name} does; choose auto"
                )
        return self

    @model_validator(mode="after")
    def triton_has_tiles_for_the_heads(self) -> TrainConfig:
        width = self.model.d_model // self.model.num_heads
        if self.hardware.attention == "triton" and width > WIDEST_TRITON_HEAD:
            raise ValueError(
                f"hardware.attention: triton has tiles for heads of width {WIDEST_TRITON_HEAD} at most, and "
                f"model.d_model / model.num_heads is {width}; choose attention=auto, or more heads"
            )
        return self

    @property
    def run_id(self) -> str:
        """Eight hexadecimal digits of what decides the result and its speed: not names, folders or loggers, nor how
        much of it one call does.
        """
        deciding = self.model_dump(mode="json", exclude={"name", "stop_after_minutes", "sweep", "runs_dir", "logger"})
        deciding["data"].pop("cache_dir")
        for name in ("bootstrap_samples", "length_buckets"):  # how much is said of a result
            deciding["evaluation"].pop(name)
        for key, earlier in EARLIER_DEFAULTS.items():
            section, _, name = key.partition(".")
            if deciding.get(section, {}).get(name, ...) == earlier:
                del deciding[section][name]
        for old, new in RENAMED.items():
            section, _, name = new.partition(".")
            deciding[section][old.partition(".")[2]] = deciding[section].pop(name)
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def label(self) -> str:
        """The run's name: given, or made from its choices."""
        if self.name is not None:
            return self.name
        clip = "" if self.position.k is None else f"-k{self.position.k}"
        return f"{self.data.name}-{self.model.name}-{self.position.name}{clip}-s{self.seed}"

    @property
    def run_dir_name(self) -> str:
        return f"{self.label}-{self.run_id}"


def of_a_record(settings: Mapping[str, Any]) -> TrainConfig:
    """The configuration that a record holds; settings that were added later have the value of what was done before.

    Raises:
        ConfigError: as `validated`.
    """
    return validated(TrainConfig, with_earlier_defaults(settings))
