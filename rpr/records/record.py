"""The run record: one JSON file per run with its configuration, provenance and results."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from rpr.errors import RecordError
from rpr.io.atomic import replace_file
from rpr.io.escape import escape_control_characters, escape_tree
from rpr.kinds import TEXT, Kind, kind_of
from rpr.records.scores import STRICT, ByContext, ByLength, Score
from rpr.validation import first_problem
from rpr.version import SCHEMA

RECORD_NAME = "record.json"
RECORDS_NAME = "records.jsonl"  # of a committed sweep: a record a line
METRICS_NAME = "metrics.jsonl"
LOG_NAME = "log.txt"  # the output of the run's processes, if they were started by another one of ours
REQUIRED_SETTINGS = ("model.name", "data.name", "position.name", "optim.max_steps", "hardware.name")
# Sections whose settings decide what a score means, except for those that concern only files, batches and the choice of
# scores.
DECIDING = ("model", "data", "optim", "evaluation")
_NOT_DECIDING = {
    *("data.cache_dir", "data.path", "evaluation.max_tokens_per_batch", "evaluation.bootstrap_samples"),
    *("evaluation.length_buckets", "evaluation.test_splits", "evaluation.validation_sentences"),
    *("evaluation.context_lengths", "evaluation.stride"),
    *("model.relative_defaults.clip_distance", "model.relative_defaults.tables"),  # the positions have what is used
}
_NOT_WALKED = {"wandb", "checkpoints", "__pycache__"}
_REPEATED_FROM = {"command", "config"}


class RecordPart(BaseModel):
    """Base of the parts of a record."""

    model_config = STRICT | ConfigDict(frozen=True, protected_namespaces=())


class Git(RecordPart):
    """The state of the checkout; all None without one (an installed wheel)."""

    commit: str | None
    dirty: bool | None


class Data(RecordPart):
    """The corpus as it was used."""

    name: str
    synthetic: bool
    train_pairs: int = Field(ge=0)
    dropped_pairs: int = Field(ge=0)
    vocabulary_size: int = Field(ge=1)
    key: str
    notes: tuple[str, ...] = ()
    unigram_bits: float | None = Field(default=None, gt=0)  # the unigram entropy of text, in bits per byte


class Training(RecordPart):
    """Speed and losses of the training; `excludes` says what the speed leaves out. None is not measured, never zero."""

    steps_per_second: float | None = Field(gt=0)
    source_tokens_per_second: float | None = Field(gt=0)
    target_tokens_per_second: float | None = Field(gt=0)
    measured_steps: int = Field(ge=0)
    excludes: str
    seconds: float = Field(ge=0)
    peak_memory_bytes: int | None = Field(ge=0)
    peak_memory_kind: str | None
    train_loss: float | None
    validation_loss: float | None
    matmul_precision: str | None
    precision: str | None
    parameters_note: str | None = None
    padding_waste: float | None = Field(default=None, ge=0, le=1)  # of the padded tokens of an epoch
    cores_used: float | None = Field(default=None, ge=0)  # on average, by the first rank, while the speed was measured


class WandbRun(RecordPart):
    """The mirror of the run in W&B; never read back."""

    id: str
    mode: str
    url: str | None


class RerunOf(RecordPart):
    """The record that a run repeats, by its run id and start time."""

    run_id: str
    started: str


class Record(RecordPart):
    """One run. `status` is "running" from the start, so that a crashed run has a record too. It is "interrupted" after
    a stop from outside (Ctrl-C, SIGTERM, a training process ended by a signal), and the run can be resumed from its
    last checkpoint; "failed" only after an error. `error` is the one-line reason for both.
    """

    schema_version: Literal[3] = Field(default=3, alias="schema")
    name: str
    run_id: str
    status: Literal["running", "finished", "failed", "interrupted"]
    error: str | None
    sweeps: tuple[str, ...] = ()
    command: str
    again: bool = False  # whether it was last started with again=true, which then resumes it
    rerun_of: RerunOf | None = None
    dropped_parameters: tuple[str, ...] = ()  # of the run whose weights it started from; the new ones it lacks
    new_parameters: tuple[str, ...] = ()
    config: dict[str, Any]
    git: Git
    versions: dict[str, str]
    label: str | None = None  # of its positions in tables, if their scheme is the user's own
    schemes: dict[str, str] | None = None  # the version of each position scheme's code, by name; None: not recorded
    device: str
    hardware: str
    concurrent_jobs: int | None = Field(default=None, ge=1)  # of a sweep, sharing the device; None: not recorded
    seed: int
    started: str
    finished: str | None
    steps: int | None = Field(ge=0)
    parameters: int | None = Field(ge=0)
    data: Data | None
    training: Training | None
    scores: tuple[Score, ...] = ()
    by_length: ByLength | None = None
    by_context: tuple[ByContext, ...] = ()
    wandb: WandbRun | None

    model_config = ConfigDict(populate_by_name=True)

    @model_validator(mode="after")
    def complete(self) -> Record:
        """What a table needs of the configuration, the rest of which is free-form."""
        for key in REQUIRED_SETTINGS:
            if self.setting(key) is None:
                raise ValueError(f"config.{key}: missing")
        return self

    def setting(self, key: str) -> Any:
        """The configuration's value at a dotted key; None if there is none."""
        tree: Any = self.config
        for name in key.split("."):
            tree = tree.get(name) if isinstance(tree, dict) else None
        return tree

    def shown(self) -> Record:
        """For tables and terminals: with `command` and `config`, from which a run is repeated, escaped as well."""
        recorded = {"command": self.command, "config": self.config}
        escaped = escape_tree(recorded)
        return self if escaped == recorded else self.model_copy(update=escaped)

    @property
    def data_name(self) -> str:
        """With the direction, where the name has the other one: `wmt14_en_de, de to en`."""
        name, source, target = (
            str(self.setting(f"data.{of}")) for of in ("name", "source_language", "target_language")
        )
        return f"{name}, {source} to {target}" if name.endswith(f"_{target}_{source}") else name

    @property
    def model_name(self) -> str:
        """The size, `tiny`, and the architecture if it is not the paper's: `tiny-decoder-only`."""
        only = self.setting("model.architecture") == "decoder_only"
        return f"{self.setting('model.name')}{'-decoder-only' if only else ''}"

    @property
    def max_steps(self) -> int:
        return int(self.setting("optim.max_steps"))

    @property
    def synthetic(self) -> bool:
        """True if the configuration or the corpus says so: a synthetic figure must not pass for a real one."""
        configured = self.task is not None or self.setting("data.synthetic") not in (None, False)
        return configured or (self.data is not None and self.data.synthetic)

    @property
    def task(self) -> str | None:
        """The rule that generated the corpus (data.task.kind); None for a corpus of sentences."""
        kind = self.setting("data.task.kind")
        return None if kind is None else str(kind)

    @property
    def corpus(self) -> str | None:
        """What identifies the documents of a language model; None for pairs, whose corpora are known by their names."""
        return self.data.key if self.data is not None and self.kind is TEXT else None

    @property
    def continued(self) -> bool:
        """Whether it started from another run's weights."""
        return self.setting("origin") is not None

    @property
    def kind(self) -> Kind:
        """Whether it is of translations, a task's answers or text."""
        return kind_of(self.config["data"])

    def score(self, split: str, metric: str = "sacrebleu") -> Score | None:
        """The score of a split; None if it was not measured."""
        return next((score for score in self.scores if (score.split, score.metric) == (split, metric)), None)

    @property
    def outcome(self) -> str | None:
        """Why there is no result, in one line; None for a finished run."""
        if self.status == "running":
            return f"still running, or killed (started {self.started})"
        return None if self.status == "finished" else f"{self.status}: {self.error}"


class Found(NamedTuple):
    """Records with their paths, sorted by path; a line for each file that could not be read."""

    records: list[tuple[Path, Record]]
    problems: list[str]


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted keys."""
    settings: dict[str, Any] = {}
    for key, value in tree.items():
        settings |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value}
    return settings


def varying(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values differ between flat settings; 1 and 1.0 do."""
    keys = dict.fromkeys(key for each in settings for key in each)
    values = {key: [each.get(key) for each in settings] for key in keys}  # most are one object, which is faster to see
    return [key for key, given in values.items() if len({*map(id, given)}) > 1 and len({*map(repr, given)}) > 1]


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """The last part of each dotted key; the whole key where another one ends in the same part."""
    last = {key: key.rpartition(".")[2] for key in keys}
    ends = [*last.values()]
    return {key: end if ends.count(end) == 1 else key for key, end in last.items()}


def deciding_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that runs must share to be comparable, by dotted key; they vary positions and seed."""
    settings = flat({name: config.get(name) for name in DECIDING})
    return {key: value for key, value in settings.items() if key not in _NOT_DECIDING}


def write_record(path: Path, record: Record) -> None:
    """Replace the record at `path` atomically; raises ValueError for NaN or infinity, which are not JSON."""
    document = record.model_dump(by_alias=True)  # not mode="json", which would turn an infinity into null
    replace_file(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def record_path(given: str | Path) -> Path:
    """The record that a user names by a run's folder, its record.json, or SWEEP_FOLDER:NAME for one of records.jsonl.
    That one has the path `SWEEP_FOLDER/records.jsonl:NAME`, which every function here reads.
    """
    folder, colon, name = str(given).rpartition(":")
    folder = folder.removesuffix(f"/{RECORDS_NAME}")
    if colon and Path(folder, RECORDS_NAME).is_file():
        return Path(folder, f"{RECORDS_NAME}:{name}")
    path = Path(given)
    return path if path.is_file() else path / RECORD_NAME


def record_name(path: Path) -> str | None:
    """The name of a record in a records.jsonl; None of a run's own record."""
    return path.name.removeprefix(f"{RECORDS_NAME}:") if path.name.startswith(f"{RECORDS_NAME}:") else None


def read_record(path: Path) -> Record:
    """Read one record strictly, of a file or as `record_path` names it. Its strings are escaped for terminals
    (rpr.io.escape), except `command` and `config`, from which the run is repeated: a resumed run must not become
    another one. Raises RecordError if it does not exist, is not JSON, has another schema, or an invalid field.
    """
    if (name := record_name(path)) is None:
        return _parse(path, read_text(path))
    texts = dict(_lines(path.with_name(RECORDS_NAME)))
    # By its whole name, or by what is unambiguous of it: without the id, or the id alone.
    keys = [key for key in texts if name == key] or [key for key in texts if name in key.rpartition("-")[::2]]
    if len(keys) != 1:
        known = ", ".join(keys) or "the names are NAME-HASH"
        raise refusal(f"{path}: {len(keys)} records of this name ({known}); give one whole name")
    return _parse(path, texts[keys[0]])


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """The name and the text of each record of a records.jsonl."""
    for number, line in enumerate(read_text(file).splitlines(), start=1):
        try:
            document = from_json(line)
            yield f"{document['name']}-{document['run_id']}", line
        except (ValueError, LookupError, TypeError):
            raise refusal(f"{file}:{number}: not a record; restore the file") from None


def run_file(record_path: Path, name: str) -> Path:
    """A file of the run, beside its record; of one in a records.jsonl with its name as prefix."""
    packed = record_name(record_path)
    return record_path.with_name(name if packed is None else f"{packed}.{name}")


def read_text(path: Path) -> str:
    """The text of a file of a run; raises RecordError if it does not exist or cannot be read."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise refusal(f"{path}: no such record; give a run's folder, as runs/NAME-HASH, or SWEEP:NAME") from None
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(f"{path}: cannot be read ({error}); restore it or repeat the run") from None


def refusal(text: str) -> RecordError:
    """A RecordError with its text escaped: the path and the content of a damaged file may be untrusted."""
    return RecordError(escape_control_characters(text))


def _parse(path: Path, text: str) -> Record:
    try:
        record = Record.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise refusal(f"{path}: {_what_is_wrong(text, error)}") from None
    # Nothing to escape: in ASCII, JSON has all control characters but DEL behind a backslash.
    if text.isascii() and "\\" not in text and "\x7f" not in text:
        return record
    document = record.model_dump(by_alias=True)
    escaped = {key: value if key in _REPEATED_FROM else escape_tree(value) for key, value in document.items()}
    return record if escaped == document else Record.model_validate_json(json.dumps(escaped), strict=True)


def _what_is_wrong(text: str, error: ValidationError) -> str:
    """The error, with the remedy. Another schema comes before any field."""
    schema = re.search(r'"schema":\s*(\d+)', text)
    if schema is not None and (number := int(schema[1])) != SCHEMA:
        remedy = "update rpr" if number > SCHEMA else "rpr 0.1.0 reads older ones; use that, or repeat the run"
        return f"schema {number} is not {SCHEMA}, the one this rpr reads; {remedy}"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{first_problem(error)}{more}; restore it or repeat the run"


def find_records(root: Path, sweep: str | None = None) -> Found:
    """Every record below `root`: files named record.json, and the lines of records.jsonl. Of several records of the
    same run (a repeat, or a committed copy: run_id, seed, hardware, corpus and code of the positions) the newest
    finished one is kept, and an original rather than its rerun: counted twice it would pass for two seeds. With
    `sweep`, only its runs. A damaged record is a line among the problems.
    """
    kept: dict[tuple[Any, ...], tuple[Path, Record]] = {}
    problems: list[str] = []
    for path, text in _texts(root, problems):
        try:
            record = _parse(path, text)
        except RecordError as error:
            problems.append(str(error))
            continue
        if sweep is None or sweep in record.sweeps:
            codes = json.dumps(record.schemes, sort_keys=True)
            key = (record.run_id, record.seed, record.hardware, record.data and record.data.key, codes)
            _, other = kept.get(key, (path, None))
            if other is None or _rank(record) > _rank(other):
                kept[key] = path, record
    return Found(sorted(kept.values(), key=lambda item: str(item[0])), problems)


def _rank(record: Record) -> tuple[bool, bool, str]:
    return (record.status == "finished", record.rerun_of is None, record.started)


def _texts(root: Path, problems: list[str]) -> Iterator[tuple[Path, str]]:
    """The path and the text of every record below a folder, also of one that may be damaged; each folder once."""
    seen = set[str]()
    for folder, folders, files in os.walk(root, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_WALKED)
        try:
            if RECORD_NAME in files:
                yield Path(folder, RECORD_NAME), read_text(Path(folder, RECORD_NAME))
            if RECORDS_NAME in files:
                lines = _lines(Path(folder, RECORDS_NAME))
                yield from ((Path(folder, f"{RECORDS_NAME}:{name}"), text) for name, text in lines)
        except RecordError as error:
            problems.append(str(error))
