"""The typed configuration: ranges and rules across fields. Default values live in conf/, never here."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from rpr.data.generated import AnyTask, SyntheticConfig
from rpr.errors import ConfigError, Problem, RecordError
from rpr.kinds import TEXT, Kind, kind_of
from rpr.model.config import WIDEST_TRITON_HEAD, Activation, Architecture, NormType, StackShape, TransformerConfig
from rpr.model.positions import AnyPositions, Positions, Scheme, Site
from rpr.validation import Name, StrictModel, validate
from rpr.version import SCHEMA

LONGEST_TAG = 64  # characters; W&B's limit
NUM_BYTE_PIECES = 260  # of data.tokenizer=bytes: 256 and the special pieces
BleuTokenizer = Literal["auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores101", "flores200", "none"]


class RelativeDefaults(StrictModel):
    """The paper's settings for this size of model; conf/position/*.yaml takes its defaults from here."""

    clip_distance: int = Field(ge=0)
    tables: Literal["per_head", "shared_by_heads", "shared_by_heads_and_layers"]


class ModelConfig(StrictModel):
    """Architecture, size and shape of the Transformer; `num_layers` are those of each stack."""

    name: Name
    architecture: Architecture
    num_layers: PositiveInt
    d_model: PositiveInt
    num_heads: PositiveInt
    d_ff: PositiveInt
    dropout: float = Field(ge=0, lt=1)
    norm: Literal["post", "pre"]
    norm_epsilon: PositiveFloat
    activation: Activation
    norm_type: NormType = "layernorm"
    qk_norm: bool = False
    bos_vector: Literal["zero", "learned"] | None  # None until the kind of corpus decides
    relative_defaults: RelativeDefaults

    def problems(self) -> Iterator[str | Problem]:
        if self.d_model % self.num_heads:
            yield Problem("num_heads", self.num_heads, f"must divide d_model = {self.d_model}")
        if self.d_model % 2:
            yield Problem("d_model", self.d_model, "must be even, as sinusoids come in pairs")

    def transformer(self, position: Positions, vocabulary_size: int) -> TransformerConfig:
        """The model with these positions and this vocabulary size."""
        return TransformerConfig(
            vocabulary_size=vocabulary_size,
            encoder_positions=position.encoder if self.architecture == "encoder_decoder" else None,
            decoder_positions=position.decoder,
            zero_bos=self.bos_vector != "learned",
            **self.model_dump(exclude={"name", "bos_vector", "relative_defaults"}),
        )


class TextConfig(StrictModel):
    """Documents instead of pairs: of Python's standard library, or read from data.path or data.hub.

    `column` has the documents of a table, one in each row, or the lines of one document. Training windows are cut from
    one stream of all documents, with EOS between them, or each from one document. In those of `stream_masked` each
    document is read as if it were alone, from position 0 at its start in the window.
    """

    python_library: bool
    column: str = Field(min_length=1)
    rows: Literal["documents", "lines"]
    windows: Literal["stream", "stream_masked", "documents"]


class DataConfig(StrictModel):
    """Where sentence pairs or documents (`text`) come from, and how they become tokens.

    `max_length` is of pairs, `context_length` of the windows that documents are cut into; the other one is None.
    """

    name: Name
    source_language: Name
    target_language: Name
    synthetic: SyntheticConfig | None
    task: AnyTask | None
    text: TextConfig | None
    hub: str | None = Field(min_length=1)
    hub_config: Name | None
    # A folder as completion writes it, with a slash, is the same corpus, and the same run.
    path: Annotated[str, Field(min_length=1), AfterValidator(lambda path: path.rstrip("/") or "/")] | None
    validation_name: str
    test_name: str
    tokenizer: Literal["bpe", "word", "bytes"]
    vocabulary_size: int = Field(ge=5, le=1_000_000)
    max_length: int | None = Field(ge=2)
    context_length: int | None = Field(ge=2)
    train_limit: PositiveInt | None
    cache_dir: str = Field(min_length=1)

    def problems(self) -> Iterator[str | Problem]:
        documents = self.text is not None
        kind, used, unused = ("pairs", "max_length", "context_length")
        if documents:
            kind, used, unused = "documents", unused, used
        # 1. Lengths and pieces.
        for key in (unused, used):
            if (getattr(self, key) is None) == (key == used):
                yield f"{key}: a corpus of {kind} has data.{used}; set it, and data.{unused}=null"
        if self.tokenizer == ("word" if documents else "bytes"):
            choice = "bytes or bpe, which keep every character" if documents else "bpe or word"
            yield Problem("tokenizer", self.tokenizer, f"is not for a corpus of {kind}", f"choose {choice}")
        least = NUM_BYTE_PIECES + 3  # newline and tab besides, and one to learn
        if documents and self.tokenizer == "bpe" and self.vocabulary_size < least:
            yield Problem("vocabulary_size", self.vocabulary_size, f"must be {least} or more, or bpe learns nothing")
        if self.tokenizer == "bytes" and self.vocabulary_size != NUM_BYTE_PIECES:
            yield Problem("vocabulary_size", self.vocabulary_size, f"must be {NUM_BYTE_PIECES} with tokenizer=bytes")
        task_side = self.task.longest_train_side if self.task is not None and self.tokenizer == "word" else 0
        if self.max_length is not None and self.max_length <= task_side:
            yield Problem("max_length", self.max_length, f"drops training pairs, of up to {task_side} tokens")
        # 2. One source of examples.
        library = self.text.python_library if self.text is not None else False
        makers = {"synthetic": self.synthetic, "task": self.task, "text.python_library": library or None}
        made = [key for key, maker in makers.items() if maker is not None]
        read = ["path", "hub", "hub_config", *(() if library else ["text"])]
        sources = [*made, *(key for key in read if getattr(self, key) is not None)]
        if made and len(sources) > 1:
            choice = "choose data=custom or data=text to read data.path"
            yield f"{sources[1]}: the {self.name} corpus is already made by data.{made[0]}; {choice}"
        if not made and self.path is None and self.hub is None:
            files = "a file of documents" if documents else "a pair of line files"
            yield f"path: {self.name} is not on a hub; give a folder or {files} as data.path=..."

    @property
    def kind(self) -> Kind:
        return kind_of(self)

    @property
    def on_hub(self) -> bool:
        """Whether the corpus is read from the Hugging Face hub."""
        return self.hub is not None and self.path is None

    @property
    def generated(self) -> bool:
        """Whether the pairs are generated, not read."""
        return self.synthetic is not None or self.task is not None


class OptimConfig(StrictModel):
    """The recipe: number and size of steps, the schedule, and which checkpoints are kept and averaged."""

    name: str
    max_steps: PositiveInt
    schedule: Literal["inverse_sqrt", "cosine", "constant"]
    warmup_steps: PositiveInt
    learning_rate_scale: PositiveFloat | None
    learning_rate: PositiveFloat | None
    weight_decay: float = Field(ge=0, lt=1)
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
    validate_every_n_steps: PositiveInt

    def problems(self) -> Iterator[str | Problem]:
        if (self.learning_rate_scale is None) == (self.learning_rate is None):
            yield "learning_rate_scale and optim.learning_rate: set exactly one of them, the other to null"
        if (self.checkpoint_every_n_steps is None) == (self.checkpoint_every_n_minutes is None):
            yield "checkpoint_every_n_steps and optim.checkpoint_every_n_minutes: set exactly one, the other to null"
        if self.average_checkpoints > self.keep_checkpoints:
            yield Problem("average_checkpoints", self.average_checkpoints, "must be optim.keep_checkpoints at most")

    @property
    def kept_checkpoints(self) -> int:
        """How many a finished run has."""
        every = self.checkpoint_every_n_steps or 1
        return min(self.keep_checkpoints, -(-self.max_steps // every))

    @property
    def rate_setting(self) -> str:
        """Which setting has the learning rate."""
        return "optim.learning_rate_scale" if self.learning_rate is None else "optim.learning_rate"


class HardwareConfig(StrictModel):
    """Where a run executes. It changes rounding and, with another kind or number of devices, what dropout may draw."""

    name: str
    accelerator: Literal["cpu", "gpu"]
    devices: PositiveInt
    num_nodes: PositiveInt
    precision: Annotated[Literal["64", "32", "bf16"], BeforeValidator(str)]  # typed, 32 is a number
    matmul_precision: Literal["auto", "highest", "high", "medium"]
    attention: Literal["auto", "dense", "blockwise", "composed", "triton"]
    num_workers: int = Field(ge=0)
    threads: int | None = Field(ge=1, le=4096)
    compile: bool = False

    def problems(self) -> Iterator[str | Problem]:
        if self.attention == "triton" and self.accelerator == "cpu":
            yield "attention: triton needs a GPU; choose attention=auto, or hardware=1xgpu"

    @property
    def num_ranks(self) -> int:
        return self.devices * self.num_nodes


class LoggerConfig(StrictModel):
    """Weights & Biases, or TensorBoard; the local record is always written."""

    mode: Literal["online", "offline", "tensorboard", "none"]
    project: str
    entity: str | None
    tags: tuple[Annotated[str, Field(min_length=1, max_length=LONGEST_TAG)], ...]
    system_metrics: bool
    finish_timeout_seconds: PositiveFloat

    def check_installed(self) -> None:
        """Raises ConfigError if TensorBoard is asked for and absent; a record may name it all the same."""
        if self.mode == "tensorboard" and find_spec("tensorboard") is None:
            raise ConfigError('logger: tensorboard is not installed; pip install "rpr[tensorboard]"')


OF_TRANSLATIONS = ("beam_size", "length_penalty", "min_length", "bleu_tokenizer")  # settings that documents lack
_IN_TRAINING = ("max_extra_length", "validation_sentences")  # which translates, too
# Settings that change no result.
NOT_DECIDING = ("name", "stop_after_minutes", "sweep", "again", "fast_dev_run", "runs_dir", "logger")
# Settings of evaluation that change no score, only what is reported.
REPORTED = ("bootstrap_samples", "length_buckets", "context_lengths", "stride")


class EvaluationConfig(StrictModel):
    """How sentences are translated and scored."""

    beam_size: PositiveInt
    length_penalty: float = Field(ge=0)
    max_extra_length: int = Field(ge=0)
    min_length: int = Field(ge=0)
    max_tokens_per_batch: PositiveInt
    validation_sentences: int = Field(ge=0)
    test_splits: tuple[str, ...]  # any that the corpus has, except train; it may have no "long"
    matmul_precision: Literal["highest", "high", "medium"] | None
    bleu_tokenizer: BleuTokenizer
    bootstrap_samples: int = Field(ge=0)
    length_buckets: tuple[PositiveInt, ...]
    text_tokens: PositiveInt
    context_lengths: tuple[PositiveInt, ...]
    stride: PositiveInt | None

    def problems(self) -> Iterator[str | Problem]:
        for key in ("length_buckets", "context_lengths"):
            lengths = list(getattr(self, key))
            if lengths != sorted(set(lengths)):
                yield Problem(key, lengths, "must be ascending", "give lengths like [10,20,40], or [] for none")
        if self.stride is not None and (not self.context_lengths or self.context_lengths[-1] % self.stride):
            yield Problem("stride", self.stride, "must divide the longest of evaluation.context_lengths")
        if "train" in self.test_splits:
            yield "test_splits: train is not scored, as its text is not kept; name other splits"


def check_attention(hardware: HardwareConfig, stacks: Sequence[StackShape]) -> None:
    """Raises ConfigError if the configured attention does not support the positions or the heads of these stacks."""
    unsupported = [f"the {stack.scheme.not_fused} of position={stack.scheme.name}"
                   for stack in stacks if stack.scheme.not_fused]  # fmt: skip
    if (width := stacks[0].site.d_head) > WIDEST_TRITON_HEAD:
        unsupported.append(f"heads of width {width}, but {WIDEST_TRITON_HEAD} at most")
    if hardware.attention == "triton" and unsupported:
        raise ConfigError(f"hardware.attention: triton does not support {unsupported[0]}; choose attention=auto")


class Origin(StrictModel):
    """The finished run whose weights a run starts from (`from=`), as it was found.

    `settings_id` is that of its settings, `positions` their label, `weights` a digest of those that its scores are of.
    """

    run: str
    run_id: str
    settings_id: str
    seed: int
    positions: str
    steps: int
    weights: str

    def words(self, seed: int | None) -> str:
        """`RoPE after 1,500 steps`, for a run with this seed; for another, or None, with the seed of the weights."""
        return f"{self.positions} after {self.steps:,} steps" + (f", seed {self.seed}" if seed != self.seed else "")


class TrainConfig(StrictModel):
    """All settings of one run; every default is in conf/train.yaml."""

    model_config = ConfigDict(populate_by_name=True)

    model: ModelConfig
    position: AnyPositions
    data: DataConfig
    optim: OptimConfig
    hardware: HardwareConfig
    logger: LoggerConfig
    evaluation: EvaluationConfig
    seed: int = Field(ge=0, lt=2**31)
    origin: Origin | None = Field(alias="from")  # a word of Python; records name it origin
    name: Name | None
    stop_after_minutes: PositiveFloat | None
    sweep: Name | None
    again: bool
    fast_dev_run: bool = False
    runs_dir: str = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def settings_of_one_stack(cls, settings: Any) -> Any:
        """One stack has one scheme. With schemes that add no positions it would be exactly zero at a zero BOS without a
        source before it, where each norm multiplies gradients by 1 / sqrt(epsilon): there BOS has a vector of its own.
        """
        names = ("model", "position", "data")
        if not isinstance(settings, Mapping) or not all(isinstance(settings.get(name), Mapping) for name in names):
            return settings
        model, position, data = (settings[name] for name in names)
        sides = [side for side in ("encoder", "decoder") if position.get(side)]
        if sides and model.get("architecture") == "decoder_only":
            raise ValueError(f"position.{sides[0]}: model.architecture=decoder_only has one stack; choose position=...")
        chosen = {"bos_vector": "zero" if data.get("text") is None else "learned"}
        return settings if model.get("bos_vector", "") is not None else {**settings, "model": {**model, **chosen}}

    def problems(self) -> Iterator[str | Problem]:
        microbatches, ranks = self.optim.microbatches_per_step, self.hardware.num_ranks
        if microbatches % ranks and ranks % microbatches:
            yield f"hardware: {ranks} devices cannot share optim.microbatches_per_step = {microbatches}; choose others"
        if self.data.kind is TEXT and self.model.architecture != "decoder_only":
            yield f"data: {self.data.name} has documents, not pairs; choose model.architecture=decoder_only"
        if self.data.kind is not TEXT and self.evaluation.context_lengths:
            yield "evaluation.context_lengths: only documents are scored by context; set it to []"
        same, longest = self.position.encoder == self.position.decoder, max(self.longest_row, self.longest_context)
        stacks = self.transformer(self.data.vocabulary_size).stacks()
        for stack in stacks:
            if problem := stack.scheme.refusal(stack.site, self.longest_context):
                whole = f"position.{problem}"
                yield whole if same else re.sub(r"position\.(?!encoder|decoder)", f"position.{stack.name}.", whole)
            if problem := stack.too_long(longest, "data.context_length, data.max_length, evaluation.context_lengths"):
                yield f"position: {problem}"
        check_attention(self.hardware, stacks)
        if self.hardware.compile and self.data.text is not None and self.data.text.windows == "stream_masked":
            yield "hardware.compile: no graph has data.windows=stream_masked, whose shapes differ; choose false"

    @property
    def longest_row(self) -> int:
        """Tokens of the longest row in training; 0 if the settings do not say."""
        joined = 2 if self.data.kind is not TEXT and self.model.architecture == "decoder_only" else 1  # source, target
        return joined * (self.data.context_length or self.data.max_length or 0)

    @property
    def longest_context(self) -> int:
        """Tokens of the longest context in training or evaluation; 0 for sentence pairs."""
        return max(self.data.context_length or 0, *self.evaluation.context_lengths, 0)

    @property
    def sites(self) -> list[tuple[Scheme, Site, int]]:
        """Each stack's scheme, where it is applied, and the longest text there (arguments of `check_hooks`)."""
        longest = max(self.longest_row, self.longest_context)
        return [(stack.scheme, stack.site, longest) for stack in self.transformer(self.data.vocabulary_size).stacks()]

    def transformer(self, vocabulary_size: int) -> TransformerConfig:
        """The run's model with this vocabulary size."""
        return self.model.transformer(self.position, vocabulary_size)

    def effective(self) -> dict[str, Any]:
        """The settings that affect the result or its speed, equal for two spellings of one run: no names, folders or
        loggers, nor how much of the training one call does.
        """
        # 1. Everything but what never decides.
        settings = self.model_dump(mode="json", exclude={*NOT_DECIDING, "position"})
        model, data, evaluation = settings["model"], settings["data"], settings["evaluation"]
        for section in (model, settings["optim"], settings["hardware"]):
            del section["name"]
        del model["relative_defaults"], data["cache_dir"]
        # 2. What scores nothing, or nothing of this kind.
        documents = self.data.text is not None
        unread = [*REPORTED, *((*OF_TRANSLATIONS, *_IN_TRAINING) if documents else ("text_tokens",))]
        unread += ["length_penalty"] if self.evaluation.beam_size == 1 else []
        for name in {*unread, *(("matmul_precision",) if self.hardware.precision == "64" else ())}:
            del evaluation[name]
        if self.hardware.precision == "64":  # which is of float32 matmuls
            del settings["hardware"]["matmul_precision"]
        if self.data.text is not None and self.data.text.python_library:  # whose files are a document each
            del data["text"]["column"], data["text"]["rows"]
        # 3. Positions as they are where they are used.
        reached = max(self.longest_context or 2 * self.longest_row, 1)
        settings["position"] = {}
        for stack in self.transformer(self.data.vocabulary_size).stacks():
            identity = stack.scheme.identity(stack.site)
            if (floor := identity.get("query_log_floor")) is not None and reached <= floor:  # no query grows
                del identity["query_log_scale"], identity["query_log_floor"]
            settings["position"][stack.name] = identity
        if (origin := settings.pop("origin")) is not None:
            settings["origin"] = [origin["run_id"], origin["weights"]]
        return settings

    def without_effect(self, overrides: Sequence[str]) -> list[str]:
        """The settings among the overrides of train without which the run is the same, but for what never decides."""
        effective, named = {*_keys(self.effective())}, []
        for word in overrides:
            key = word.partition("=")[0].lstrip("+~")
            section, _, name = key.partition(".")
            known = {key, f"position.encoder.{name}", f"position.decoder.{name}"} & effective
            reported = section in (*NOT_DECIDING, "hydra") or name in (*REPORTED, "name", "cache_dir")
            defaults = ".entries." in key or name.startswith("relative_defaults.")
            if name and "@" not in key and not (known or reported or defaults):
                named.append(key)
        return named

    @property
    def run_id(self) -> str:
        """Eight hexadecimal digits that identify the effective settings, in this schema. Records keep theirs."""
        deciding = json.dumps([SCHEMA, self.effective()], sort_keys=True)
        return hashlib.sha256(deciding.encode()).hexdigest()[:8]

    @property
    def settings_id(self) -> str:
        """As `run_id`, for all seeds, its own and those of the runs it started from."""
        origin = self.origin and self.origin.model_copy(update={"run_id": self.origin.settings_id, "weights": ""})
        return self.model_copy(update={"seed": 0, "origin": origin}).run_id

    @property
    def label(self) -> str:
        """The run's name: given, or derived from its settings."""
        if self.name is not None:
            return self.name
        clip = "" if self.position.k is None else f"-k{self.position.k}"
        model = self.model.name if self.model.architecture == "encoder_decoder" else f"{self.model.name}-decoder-only"
        origin = "" if self.origin is None else f"-from-{self.origin.settings_id}"
        return f"{self.data.name}-{model}-{self.position.name}{clip}{origin}-s{self.seed}"

    @property
    def run_dir_name(self) -> str:
        return f"{self.label}-{self.run_id}"


def _keys(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{key}" for key in _keys(value))


def config_from_record(settings: Mapping[str, Any], path: Path | None = None) -> TrainConfig:
    """The configuration of a record. Raises RecordError with its path if this version cannot read it; ConfigError as
    `validate` if no path is given.
    """
    try:
        return validate(TrainConfig, settings)
    except ConfigError as error:
        if path is None:
            raise
        reason = f"this version of rpr cannot read its configuration ({error}); use the version that wrote it"
        raise RecordError(f"{path}: {reason}") from None
