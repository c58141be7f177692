"""The run record: one JSON file per run with its configuration, provenance and results."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from rpr.environment import for_child
from rpr.errors import RecordError
from rpr.io.atomic import replace_file
from rpr.io.escape import escape_control_characters, escape_tree
from rpr.kinds import TASK, TEXT, Kind, kind_of
from rpr.paths import HERE
from rpr.records.scores import STRICT, ByContext, ByLength, Score, Text
from rpr.validation import first_problem
from rpr.version import SCHEMA

RECORD_NAME = "record.json"
RECORDS_NAME = "records.jsonl"  # of a committed sweep: a record a line
METRICS_NAME = "metrics.jsonl"
LOG_NAME = "log.txt"  # the output of the run's processes, if they were started by another one of ours
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


class RecordPart(BaseModel):
    """Base of the parts of a record."""

    model_config = STRICT | ConfigDict(frozen=True, protected_namespaces=())


class Git(RecordPart):
    """The state of the checkout; None without one (an installed wheel)."""

    commit: Text | None
    dirty: bool | None

    @classmethod
    def here(cls) -> Git:
        """Of the checkout that this package runs from."""
        folder = HERE.parent
        if not (folder / ".git").exists():  # an installed package must not report some other repository around it
            return cls(commit=None, dirty=None)
        commit, status = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain")
        return cls(commit=commit, dirty=None if status is None else bool(status))


def _git(folder: Path, *arguments: str) -> str | None:
    # Also in a checkout of another user, as in a container: its code is what is running.
    command = ["git", "--no-optional-locks", "-c", f"safe.directory={folder}", "-C", str(folder), *arguments]
    try:  # in a git hook GIT_DIR names the user's own repository
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, env=for_child())
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


class Data(RecordPart):
    """The corpus as it was used."""

    name: Text
    synthetic: bool
    train_pairs: int = Field(ge=0)
    dropped_pairs: int = Field(ge=0)
    vocabulary_size: int = Field(ge=1)
    key: Text
    notes: tuple[Text, ...] = ()
    unigram_bits: float | None = Field(default=None, gt=0)  # the unigram entropy of text, in bits per byte


class Training(RecordPart):
    """Speed and losses of the training; `excludes` says what the speed leaves out. None is not measured, never zero."""

    steps_per_second: float | None = Field(gt=0)
    source_tokens_per_second: float | None = Field(gt=0)
    target_tokens_per_second: float | None = Field(gt=0)
    measured_steps: int = Field(ge=0)
    excludes: Text
    seconds: float = Field(ge=0)
    peak_memory_bytes: int | None = Field(ge=0)
    peak_memory_kind: Text | None
    train_loss: float | None
    validation_loss: float | None
    matmul_precision: Text | None
    precision: Text | None
    parameters_note: Text | None = None
    padding_waste: float | None = Field(default=None, ge=0, le=1)  # of the padded tokens of an epoch
    cores_used: float | None = Field(default=None, ge=0)  # on average, by the first rank, while the speed was measured


class WandbRun(RecordPart):
    """The mirror of the run in W&B; never read back."""

    id: Text
    mode: Text
    url: Text | None


class RerunOf(RecordPart):
    """The record that a run repeats, by its run id and start time."""

    run_id: Text
    started: Text


class Record(RecordPart):
    """One run. `status` is "running" from the start, so that a crashed run has a record too. It is "interrupted" after
    a stop from outside (Ctrl-C, SIGTERM, a training process ended by a signal), and the run can be resumed from its
    last checkpoint; "failed" only after an error. `error` is the one-line reason for both.
    """

    schema_version: Literal[3] = Field(default=3, alias="schema")
    name: Text
    run_id: Text
    status: Literal["running", "finished", "failed", "interrupted"]
    error: Text | None
    sweeps: tuple[Text, ...] = ()
    command: str
    again: bool = False  # whether it was last started with again=true, which then resumes it
    rerun_of: RerunOf | None = None
    dropped_parameters: tuple[Text, ...] = ()  # of the run whose weights it started from; the new ones it lacks
    new_parameters: tuple[Text, ...] = ()
    config: dict[str, Any]
    git: Git
    versions: dict[Text, Text]
    label: Text | None = None  # of its positions in tables, if their scheme is the user's own
    schemes: dict[Text, Text] | None = None  # the version of each position scheme's code, by name; None: not recorded
    device: Text
    hardware: Text
    concurrent_jobs: int | None = Field(default=None, ge=1)  # of a sweep, sharing the device; None: not recorded
    seed: int
    started: Text
    finished: Text | None
    steps: int | None = Field(ge=0)
    parameters: int | None = Field(ge=0)
    data: Data | None
    training: Training | None
    scores: tuple[Score, ...] = ()
    by_length: ByLength | None = None
    by_context: tuple[ByContext, ...] = ()
    wandb: WandbRun | None

    model_config = ConfigDict(populate_by_name=True)

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
        name, source, target = (self.setting(f"data.{of}") for of in ("name", "source_language", "target_language"))
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
        configured = self.kind is TASK or self.setting("data.synthetic")
        return bool(configured or (self.data and self.data.synthetic))

    @property
    def corpus(self) -> str | None:
        """What identifies the documents of a language model; None for pairs, whose corpora are known by their names."""
        return self.data.key if self.data and self.kind is TEXT else None

    @property
    def kind(self) -> Kind:
        """Whether it is of translations, a task's answers or text."""
        return kind_of(self.config["data"])

    def score(self, split: str, metric: str = "sacrebleu") -> Score | None:
        return next((score for score in self.scores if (score.split, score.metric) == (split, metric)), None)

    @property
    def outcome(self) -> str | None:
        """Why there is no result, in one line; None for a finished run."""
        running = f"still running, or killed (started {self.started})"
        return {"finished": None, "running": running}.get(self.status, f"{self.status}: {self.error}")


class Found(NamedTuple):
    """Records with their paths, sorted by path; a line for each file that could not be read."""

    records: list[tuple[Path, Record]]
    problems: list[str]


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
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
    keys = [name] if name in texts else [key for key in texts if name in key.rpartition("-")[::2]]
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
        return Record.model_validate_json(text, strict=True)
    except ValidationError as error:
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        wrong = f"{first_problem(error)}{more}; restore it or repeat the run"
        schema = re.search(r'"schema":\s*(\d+)', text)
        if schema is not None and (number := int(schema[1])) != SCHEMA:  # which comes before any field
            remedy = "update rpr" if number > SCHEMA else "rpr 0.1.0 reads older ones; use that, or repeat the run"
            wrong = f"schema {number} is not {SCHEMA}, the one this rpr reads; {remedy}"
        raise refusal(f"{path}: {wrong}") from None


def find_records(root: Path, sweep: str | None = None) -> Found:
    """Every record below `root`: files named record.json, and the lines of records.jsonl. Of several records of the
    same run (a repeat, or a committed copy: run_id, seed, hardware, corpus and code of the positions) the newest
    finished one is kept, and an original rather than its rerun: counted twice it would pass for two seeds. With
    `sweep`, only its runs. A damaged record is a line among the problems.
    """
    runs, problems = list[tuple[Path, Record]](), list[str]()
    for path, text in _texts(root, problems):
        try:
            runs.append((path, _parse(path, text)))
        except RecordError as error:
            problems.append(str(error))
    runs.sort(key=lambda item: (item[1].status == "finished", item[1].rerun_of is None, item[1].started), reverse=True)
    kept: dict[tuple[Any, ...], tuple[Path, Record]] = {}
    for path, run in runs:
        if sweep is None or sweep in run.sweeps:
            codes = json.dumps(run.schemes, sort_keys=True)
            kept.setdefault((run.run_id, run.seed, run.hardware, run.data and run.data.key, codes), (path, run))
    return Found(sorted(kept.values(), key=lambda item: str(item[0])), problems)


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
