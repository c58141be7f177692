"""A run that starts from the weights of a finished run, with the same model but for its positions (`train from=`)."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from rpr.config.train import Origin, TrainConfig, config_from_record
from rpr.data.vocabulary import Vocabulary
from rpr.environment import is_first_rank
from rpr.errors import ConfigError, DataError
from rpr.io.escape import note
from rpr.model.config import TransformerConfig
from rpr.model.transformer import Transformer
from rpr.paths import user_path
from rpr.records.position import check_same_code, position_of
from rpr.records.record import RECORD_NAME, read_record, write_record
from rpr.runs.checkpoints import averaged_weights
from rpr.runs.loading import record_of, vocabulary_of

_MAY_DIFFER = {"name", "dropout", "relative_defaults"}  # of a model's settings


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


def weights_of(origin: Origin) -> dict[str, Tensor]:
    """The weights that a run starts from. Raises RecordError if there is no record in the folder of the other run,
    DataError if its weights have changed or cannot be read.
    """
    weights, _ = _weights(user_path(origin.run))
    if _digest_of(weights) != origin.weights:
        raise DataError(f"from: {origin.run} has other weights than when this run was started; restore them")
    return weights


def inherit(model: nn.Module, origin: Origin) -> dict[str, tuple[str, ...]]:
    """Give a model the parameters of another run that it has under the same name and in the same shape; those that it
    shares between layers if the other run has one value for all of them. Returns the names of the other's parameters
    that are `dropped`, and of the model's own that are `new`. Raises errors as `weights_of`.
    """
    weights = weights_of(origin)
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
    """Names of parameters, those of all layers as one: `decoder.*.self_attention.tables.keys`."""
    return ", ".join(dict.fromkeys(re.sub(r"\.\d+(?=\.)", ".*", name) for name in names)) or "none"


def _weights(run_dir: Path) -> tuple[dict[str, Tensor], str]:
    """The weights that a run's scores are of, and their description."""
    config = config_from_record(record_of(run_dir, "from").config)
    return averaged_weights(run_dir, config.optim.average_checkpoints)


@cache  # every job of a sweep may start from the same run
def _digest(run_dir: Path) -> tuple[str, str]:
    weights, description = _weights(run_dir)
    return _digest_of(weights), description


def _digest_of(weights: Mapping[str, Tensor]) -> str:
    """sha256 of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {weight.dtype} {[*weight.shape]}".encode())
        digest.update(weight.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
