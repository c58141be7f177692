"""Loads a trained run: its record, configuration, vocabulary, checkpoints and weights; from those of a finished run
another one can start, with the same model but for its positions (`train from=`).
"""

import errno
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rpr.config.commands import OneRunConfig, ReportConfig
from rpr.config.train import Origin, TrainConfig, config_from_record
from rpr.data.batches import sample_windows
from rpr.data.cache import PreparedData, prepare
from rpr.data.vocabulary import ByteVocabulary, Vocabulary
from rpr.environment import is_first_rank
from rpr.errors import ConfigError, DataError, RecordError, RunError
from rpr.io.escape import note
from rpr.kinds import TEXT
from rpr.model.config import TransformerConfig
from rpr.model.transformer import Transformer, build_model
from rpr.paths import user_path
from rpr.records.position import check_same_code, position_of
from rpr.records.record import RECORD_NAME, Record, read_record, write_record
from rpr.runs import runtime
from rpr.runs.locks import current_record

VOCABULARY_NAME = "vocabulary.model"  # a run's own copy, so that it translates without its corpus
_MAY_DIFFER = {"name", "dropout", "relative_defaults"}  # of a model's settings
_STEP = re.compile(r"step=?(\d+)\.ckpt")
_PREFIX = "model."  # of the Transformer's weights in a LightningModule's state
_REMEDY = "restore the run's own copy, or remove it to use that of the run's corpus"


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, file) of every checkpoint in the folder, oldest first."""
    return sorted((int(m[1]), path) for path in folder.glob("step*.ckpt") if (m := _STEP.fullmatch(path.name)))


def load_checkpoint(path: Path, *, mapped: bool = False) -> dict[str, Any]:
    """A checkpoint's contents as plain data; never runs code from the file. Mapped, only what is accessed is read.
    Raises DataError if the file does not exist, is damaged, or contains more than plain data, RunError if it cannot be
    read now (an unavailable disk, no memory) but may be intact.
    """
    try:
        loaded = torch.load(str(path), map_location="cpu", weights_only=True, mmap=mapped)  # noqa: TID251 (the one place)
    except FileNotFoundError:
        raise DataError(f"{path}: no such checkpoint") from None
    except Exception as error:  # damaged bytes are executed as pickle opcodes and can raise anything
        if isinstance(error, MemoryError) or getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise RunError(f"{path}: cannot be read now ({error}); fix this and rerun the same command") from None
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
        raise DataError(
            f"{path}: cannot be read as a checkpoint ({reason}); move it away to use an earlier one"
        ) from None
    if not isinstance(loaded, dict) or not isinstance(loaded.get("state_dict"), dict):
        raise DataError(f"{path}: contains no state_dict; give a checkpoint that rpr-cli train wrote")
    return loaded


def model_weights(path: Path) -> dict[str, Tensor]:
    """The Transformer's weights in a checkpoint, by parameter name."""
    state = load_checkpoint(path, mapped=True)["state_dict"]
    return {name.removeprefix(_PREFIX): weight for name, weight in state.items() if name.startswith(_PREFIX)}


def averaged_weights(run_dir: Path, last: int) -> tuple[dict[str, Tensor], str]:
    """The plain mean of the weights of a run's last N checkpoints, summed in float64 (the paper's big recipe averages
    20), and its description, which says, with fewer than N, what share of the training they cover. Raises DataError if
    there is no checkpoint, or they are not of one model.
    """
    averaged = checkpoints(run_dir / "checkpoints")[-last:]
    if not averaged:
        raise DataError(
            f"{run_dir}: no checkpoints; resume the run, or, if it has finished, move it away and train it again"
        )
    steps, paths = zip(*averaged, strict=True)
    weights = model_weights(paths[0])
    if len(paths) == 1:
        return weights, f"step {steps[0]}"
    total, shapes = {name: weight.double() for name, weight in weights.items()}, _shapes(weights)
    for path in paths[1:]:
        weights = model_weights(path)
        if _shapes(weights) != shapes:
            raise DataError(f"{path}: belongs to another model than {paths[0]}; move it away")
        total = {name: summed + weights[name].double() for name, summed in total.items()}
    mean = {name: (summed / len(paths)).to(weights[name].dtype) for name, summed in total.items()}
    share = f", {1 - steps[0] / steps[-1]:.0%} of the training" if len(steps) < last else ""
    return mean, f"average of {len(steps)} (steps {steps[0]} to {steps[-1]}{share})"


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in weights.items()}


def record_of(run_dir: Path, setting: str = "run") -> Record:
    """The record in a run's folder, which this setting names; raises RecordError if there is no readable one."""
    if not (run_dir / RECORD_NAME).exists():
        raise RecordError(
            f"{setting}: {run_dir} has no {RECORD_NAME}; give the folder of a run, e.g. {setting}=runs/NAME-HASH"
        )
    return read_record(run_dir / RECORD_NAME)


def config_of(run_dir: Path, command: OneRunConfig | ReportConfig) -> TrainConfig:
    """The run's own configuration, with the hardware and cache folder of a command; a note says if the run has not
    finished. Raises RecordError as `record_of`, or if this version cannot read the configuration; ConfigError if the
    hardware does not fit it.
    """
    record = record_of(run_dir)
    if record.outcome is not None:
        note(f"{run_dir.name}: {record.outcome}; used as it is in its last checkpoint")
    settings = config_from_record(record.config, run_dir / RECORD_NAME).model_dump(mode="json")
    settings["hardware"] = command.hardware.model_dump(mode="json")
    if command.cache_dir is not None:
        settings["data"]["cache_dir"] = command.cache_dir
    return config_from_record(settings)


def vocabulary_of(run_dir: Path, config: TrainConfig) -> Vocabulary:
    """The run's own copy; without one, that of its token cache, which is prepared if necessary. Raises DataError if the
    copy is damaged, or as `check_corpus`.
    """
    path = run_dir / VOCABULARY_NAME
    if path.exists():
        return Vocabulary.load(path, _REMEDY)
    data = prepare(config.data)
    check_corpus(run_dir, data)
    return data.vocabulary


def corpus_change(run_dir: Path, record: Record | None, data: PreparedData) -> str | None:
    """That the corpus is another one than the run's, if it is. Raises DataError if token ids mean other pieces."""
    path, name = run_dir / VOCABULARY_NAME, data.meta.name
    trained_on = record.data.key if record is not None and record.data is not None else None
    if path.exists() and Vocabulary.load(path, _REMEDY).digest != data.meta.vocabulary_digest:
        raise DataError(
            f"data: {name} has another vocabulary than {run_dir.name} was trained on (of another corpus, or by another "
            "sentencepiece); restore the old one, or move that run's folder away and train it again"
        )
    if trained_on in (None, data.meta.key):
        return None
    keys = f"key {str(trained_on)[:12]}, now {data.meta.key[:12]}"
    return f"data: {name} has changed since {run_dir.name} was started ({keys})"


def check_corpus(run_dir: Path, data: PreparedData) -> None:
    """`corpus_change` as a note. Raises DataError, too, if the run has no copy of its vocabulary, but of bytes."""
    if change := corpus_change(run_dir, record_of(run_dir), data):
        if not isinstance(data.vocabulary, ByteVocabulary) and not (run_dir / VOCABULARY_NAME).exists():
            raise DataError(f"{change}; without its {VOCABULARY_NAME} nothing says what its tokens are: restore either")
        note(f"{change}; what follows is of the corpus as it is now")


def model_of(config: TrainConfig, run_dir: Path, average: int | None, vocabulary_size: int) -> tuple[Transformer, str]:
    """The run's model in evaluation mode on the hardware's device, and a description of its checkpoints, the last
    `average` of which are averaged (None: as in the run's recipe). Raises DataError if there is none, or fewer, or the
    weights do not fit the configuration and vocabulary, RecordError if the code of its positions has changed.
    """
    check_same_code(config.position, record_of(run_dir))
    there = len(checkpoints(run_dir / "checkpoints"))
    if average is not None and 0 < there < average:
        raise DataError(f"average_checkpoints: {average} requested, but {run_dir} has {there}; give at most {there}")
    weights, checkpoint = averaged_weights(run_dir, average or config.optim.average_checkpoints)
    model = build_model(config.transformer(vocabulary_size))
    if config.hardware.precision == "64":  # before the weights, which may be float64, are copied
        model.double()
    model.use_attention(config.hardware.attention)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{run_dir}: the checkpoint does not fit the run's configuration ({reason})") from None
    return model.to(runtime.torch_device(config.hardware)).eval(), checkpoint


def load(config: TrainConfig, run_dir: Path, average: int | None) -> tuple[PreparedData, Transformer, str]:
    """The run's data, and its model as from `model_of`; raises DataError, too, if the corpus has another vocabulary."""
    runtime.check_devices(config.hardware)
    runtime.set_up(config.hardware)
    data = prepare(config.data)
    check_corpus(run_dir, data)
    return data, *model_of(config, run_dir, average, len(data.vocabulary))


@dataclass(frozen=True)
class TrainedModel:
    """A trained run on a command's hardware, its `model` in evaluation mode, and examples of its `split`, pairs or
    windows: token IDs, each with EOS; the sources of windows are empty.
    """

    record: Record
    config: TrainConfig
    model: Transformer
    checkpoint: str
    vocabulary: Vocabulary
    split: str
    sources: Sequence[Sequence[int]]
    references: Sequence[Sequence[int]]

    @property
    def documents(self) -> bool:
        return self.config.data.kind is TEXT

    @property
    def items(self) -> str:
        return "windows" if self.documents else "sentences"

    @property
    def pairs(self) -> list[tuple[Sequence[int], Sequence[int]]]:
        return list(zip(self.sources, self.references, strict=True))


def load_with_examples(
    run_dir: Path, command: OneRunConfig | ReportConfig, split: str, count: int
) -> tuple[PreparedData, TrainedModel]:
    """The data of a run that has not failed or been killed (else RunError), and its model with the first sentences of a
    split. Raises RecordError or DataError as `load`, or if there is no such split, or an empty one.
    """
    record_of(run_dir)  # raises with the setting
    record, _ = current_record(run_dir / RECORD_NAME)
    if record.status in ("failed", "interrupted"):
        raise RunError(f"run: {run_dir.name} {record.outcome}; its weights are not usable: finish the run first")
    config = config_of(run_dir, command)
    data, model, checkpoint = load(config, run_dir, command.average_checkpoints)
    tokens, window = data.split(split), config.data.context_length
    if window is not None:
        references = sample_windows(tokens, window, count)
        sources: list[list[int]] = [[] for _ in references]
    else:
        sources, references = (tokens.first(side, count) for side in ("source", "target"))
    return data, TrainedModel(record, config, model, checkpoint, data.vocabulary, split, sources, references)


def origin_of(config: TrainConfig, run: str) -> Origin:
    """The run in this folder, from whose weights a run with this configuration can start. Raises RecordError if there
    is no record that this version can read, or the code of its positions has changed, ConfigError if it has not
    finished, has another model, or lacks checkpoints that its scores are of, DataError if its weights cannot be read.
    """
    record = record_of(user_path(run), "from")
    if record.status != "finished" or record.steps is None:
        raise ConfigError(f"from: {run} {record.outcome}; finish it first, or choose another run")
    earlier = config_from_record(record.config, user_path(run) / RECORD_NAME)
    check_same_code(earlier.position, record)
    own, its = (of.model.model_dump(exclude=_MAY_DIFFER) for of in (config, earlier))
    if differing := {key: value for key, value in its.items() if own[key] != value}:
        settings = " ".join(f"model.{key}={value}" for key, value in differing.items())
        raise ConfigError(f"from: {run} has another model; give this one its settings, too: {settings}")
    weights, checkpoint = _digest(user_path(run))
    if record.scores and (scored := record.scores[0].checkpoint) != checkpoint:
        raise ConfigError(f"from: {run} was scored with {scored}, but has {checkpoint} now; restore the others")
    return Origin(
        run=run,
        run_id=record.run_id,
        settings_id=earlier.settings_id,
        seed=earlier.seed,
        positions=position_of(record).label,
        steps=record.steps,
        weights=weights,
    )


def check_same_vocabulary(origin: Origin, vocabulary: Vocabulary) -> None:
    """Raises DataError unless the tokens of both runs are the same."""
    run_dir = user_path(origin.run)
    earlier = vocabulary_of(run_dir, config_from_record(record_of(run_dir, "from").config))
    if earlier.digest != vocabulary.digest:
        raise DataError(f"from: {origin.run} has another vocabulary; train on its corpus, with its data.* settings")


def inherit(model: nn.Module, origin: Origin) -> dict[str, tuple[str, ...]]:
    """Give a model the parameters of another run that it has under the same name and in the same shape; those that it
    shares between layers if the other run has one value for all of them. Returns the names of the other's parameters
    that are `dropped`, and of the model's own that are `new`. Raises RecordError if there is no record in the folder of
    the other run, DataError if its weights have changed or cannot be read.
    """
    weights, _ = _weights(user_path(origin.run))
    if _digest_of(weights) != origin.weights:
        raise DataError(f"from: {origin.run} has other weights than when this run was started; restore them")
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    for name, buffer in model.named_buffers():  # of a user's embeddings
        if name in weights and weights[name].shape == buffer.shape:
            buffer.copy_(weights.pop(name))
    new = []
    for parameter, own_names in names.items():
        taken = [name for name in own_names if name in weights and weights[name].shape == parameter.shape]
        if taken and all(torch.equal(weights[taken[0]], weights[name]) for name in taken):
            with torch.no_grad():
                parameter.copy_(weights[taken[0]])
            weights = {name: weight for name, weight in weights.items() if name not in taken}
        else:
            new.append(own_names[0])
    return {"dropped": tuple(weights), "new": tuple(new)}


def start_from(origin: Origin, model: Transformer, run_dir: Path) -> None:
    """`inherit`; the first rank says and records which parameters are dropped and new, and says which settings of the
    same scheme have other values, as RoPE's base: no parameter shows them.
    """
    inherited = inherit(model, origin)
    if not is_first_rank():
        return
    path = run_dir / RECORD_NAME
    update = {f"{what}_parameters": names for what, names in inherited.items()}
    write_record(path, read_record(path).model_copy(update=update))
    listed = "; ".join(f"{what}: {_in_words(names)}" for what, names in inherited.items())
    note(f"from {origin.run} ({origin.positions}); {'; '.join([listed, *_changed(origin, model.config)])}")


def _changed(origin: Origin, config: TransformerConfig) -> list[str]:
    earlier = config_from_record(record_of(user_path(origin.run), "from").config)
    lines = []
    for own, other in zip(config.stacks(), earlier.transformer(config.vocabulary_size).stacks(), strict=True):
        for now, before in zip(*(stack.scheme.of_layers(config.num_layers) for stack in (own, other)), strict=True):
            if type(now) is not type(before):
                continue
            new, old = now.identity(own.site), before.identity(own.site)
            names = [name for name in new | old if new.get(name) != old.get(name)]
            lines += [f"position.{name} = {getattr(now, name)}, not {getattr(before, name)} as there" for name in names]
    return [*dict.fromkeys(lines)]


def _in_words(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(re.sub(r"\.\d+(?=\.)", ".*", name) for name in names)) or "none"


def _weights(run_dir: Path) -> tuple[dict[str, Tensor], str]:
    config = config_from_record(record_of(run_dir, "from").config)
    return averaged_weights(run_dir, config.optim.average_checkpoints)


@cache  # every job of a sweep may start from the same run
def _digest(run_dir: Path) -> tuple[str, str]:
    weights, description = _weights(run_dir)
    return _digest_of(weights), description


def _digest_of(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {weight.dtype} {[*weight.shape]}".encode())
        digest.update(weight.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
