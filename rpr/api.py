"""rpr in Python: `rpr.load`, a trained run with its model, and `rpr.records`, all runs of a folder as a table."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from rpr.checks.positions import attention_weights
from rpr.config.commands import SamplingConfig
from rpr.config.train import HardwareConfig, TrainConfig, config_from_record
from rpr.data.vocabulary import BOS, EOS
from rpr.decode.engine import Engine, pad_rows
from rpr.decode.sampling import Continuation, OnText, continuations
from rpr.decode.translator import Translator, normalised, translate_config
from rpr.errors import ConfigError, RecordError
from rpr.kinds import TEXT
from rpr.paths import data_dir, user_path
from rpr.records.position import position_of
from rpr.records.record import Record, find_records, flat
from rpr.runs import loading
from rpr.scoring.text import nats
from rpr.validation import validate

# What most people look at; of scores those of the findings.
_COLUMNS = ("name", "folder", "status", "seed", "position", "data.name", "model.name", "optim.max_steps", "parameters")
_SPEED = "steps_per_second"
_FACTS = ("name", "run_id", "status", "seed", "error", "device", "concurrent_jobs", "steps", "parameters")
_MEASURED = (_SPEED, "target_tokens_per_second", "train_loss", "validation_loss")


@dataclass(frozen=True, repr=False)
class TrainedRun:
    """A run with its model. `config` is the configuration it was trained with.

    `attention`, `logits`, `log_probabilities` and `losses` read one pair of texts of any length, as in training: the
    target after BOS. Query and row t of the target have seen its first t pieces; the last one has seen all, and scores
    EOS. They raise ConfigError for a language model of documents with a source (give ""), or with more tokens than
    learned positions, of which only sentence pairs share the last. The tensors have no gradient, and but for losses
    are on the model's device.
    """

    folder: Path
    record: Record
    config: TrainConfig
    translator: Translator

    def __repr__(self) -> str:
        return f"<{self.record.name}: {position_of(self.record).label}, {self.record.steps} steps, in {self.folder}>"

    @property
    def engine(self) -> Engine:
        """The model (`engine.model`) and its precision."""
        return self.translator.engine

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """The best translation of each sentence; `translator` has more options. Raises ConfigError if the run is a
        language model of documents.
        """
        if self.config.data.kind is TEXT:
            raise ConfigError(f"translate: {self.record.name} is a language model of documents; use loss(text)")
        return self.translator.translate(sentences)

    def generate(self, prompts: Sequence[str], **settings: Any) -> list[list[str]]:
        """The continuations of each prompt by a decoder-only model. The settings are those of conf/generate.yaml, which
        documents them: max_new_tokens, temperature, top_k, seed, num_samples, stop. Raises ConfigError for an invalid
        one, an encoder-decoder model, or more tokens than learned positions.
        """
        defaults = yaml.safe_load((data_dir("conf") / "generate.yaml").read_text(encoding="utf-8"))
        chosen = {name: defaults[name] for name in SamplingConfig.model_fields} | settings
        by_prompt = self.continuations(prompts, validate(SamplingConfig, chosen))
        return [[sample.text for sample in of_prompt] for of_prompt in by_prompt]

    def continuations(
        self, prompts: Sequence[str], sampling: SamplingConfig, on_text: OnText | None = None
    ) -> list[list[Continuation]]:
        """As `generate`, with tokens and ends; `on_text` as for `rpr.decode.sampling.continuations`."""
        if self.config.model.architecture != "decoder_only":
            rule = "is an encoder-decoder model, which translates sources instead of continuing prompts"
            raise ConfigError(f"run: {self.record.name} {rule}; use rpr-cli translate {self.folder}")
        if isinstance(prompts, str):
            raise TypeError("prompts: expected a sequence of strings, not one string")
        rows = [self.prompt_ids(prompt) for prompt in prompts]
        limit = self.config.evaluation.max_tokens_per_batch
        return continuations(self.engine, self.translator.vocabulary, rows, sampling, limit, on_text)

    def prompt_ids(self, prompt: str) -> list[int]:
        """All that the model reads before a continuation."""
        return [BOS, *self._ids(prompt)] if self.config.data.kind is TEXT else [*self._ids(prompt), EOS, BOS]

    def attention(self, source: str, target: str) -> dict[str, Tensor]:
        """The attention weights by stack, [layers, heads, queries, keys]: `encoder`, `decoder`, and `cross` from the
        decoder to the encoder's output. `pieces` names queries and keys.
        """
        with self.engine.evaluating(), torch.no_grad():
            return attention_weights(self.engine.model, *self._inputs(source, target))

    def pieces(self, source: str, target: str) -> dict[str, list[str]]:
        """The pieces that each stack reads."""
        model, piece = self.engine.model, self.translator.vocabulary.piece
        rows = zip(model.stacks(), model.inputs(*self._inputs(source, target)), strict=True)
        return {stack.shape.name: [*map(piece, ids_1L[0].tolist())] for stack, ids_1L in rows}

    def logits(self, source: str, target: str) -> Tensor:
        """The scores of every piece of the vocabulary, [pieces of the target + 1, vocabulary]."""
        model = self.engine.model
        with self.engine.evaluating(), torch.no_grad():
            return model.logits(model(*self._inputs(source, target))[0])

    def log_probabilities(self, source: str, target: str) -> Tensor:
        """ln p of every piece of the vocabulary, float64, of the shape of `logits`."""
        return self.logits(source, target).double().log_softmax(-1)

    def losses(self, source: str, target: str) -> Tensor:
        """-ln p of each piece of the target, then of EOS: float64 [pieces of the target + 1]."""
        ids_T1 = torch.tensor([*self._ids(target), EOS])[:, None]
        return -self.log_probabilities(source, target).cpu().gather(1, ids_T1)[:, 0]

    def loss(self, text: str) -> float:
        """Mean -ln p of a document's pieces, without EOS: nats per token, in separate windows of data.context_length.
        Raises ConfigError if the run is a model of sentence pairs, or the text is empty.
        """
        window = self.config.data.context_length
        if window is None:
            rule = "is a model of sentence pairs; use log_probabilities(source, target)"
            raise ConfigError(f"loss: {self.record.name} {rule}")
        if not text:
            raise ConfigError("text: is empty; give at least one character")
        ids_1T = torch.tensor([[BOS, *self._ids(text)]])
        with self.engine.evaluating(), torch.no_grad():
            windows = zip(*(torch.split(ids, window, dim=1) for ids in (ids_1T[:, :-1], ids_1T[:, 1:])), strict=True)
            return float(torch.cat([nats(self.engine.model, *sides) for sides in windows], dim=1).mean())

    def _ids(self, text: str) -> list[int]:
        return self.translator.vocabulary.encode(text if self.config.data.kind is TEXT else normalised(text))

    def _inputs(self, source: str, target: str) -> tuple[Tensor, Tensor]:
        documents = self.config.data.kind is TEXT
        if documents and source:
            raise ConfigError(f"source: {self.record.name} is a language model of documents, without sources; give ''")
        rows, ids_T = self.engine.model.config.decoder_positions.num_learned, [BOS, *self._ids(target)]
        if documents and rows is not None and len(ids_T) > rows:
            tokens = f"its {len(ids_T)} tokens with BOS"
            raise ConfigError(f"target: {tokens} are more than the model's {rows} learned positions; shorten it")
        device = self.engine.model.embedding_VM.device
        ids = [] if documents else [*self._ids(source), EOS]
        return pad_rows([ids], device), pad_rows([ids_T], device)


def load(
    run: str | Path,
    *,
    average_checkpoints: int | None = None,
    hardware: str | HardwareConfig | None = None,
    cache_dir: str | None = None,
) -> TrainedRun:
    """Load the folder of a run; the arguments are those of `Translator.from_run`. Raises ConfigError for an invalid
    value, DataError or RecordError if the folder is not a run, or is damaged.
    """
    config = translate_config(run, hardware, average_checkpoints=average_checkpoints, cache_dir=cache_dir)
    folder = user_path(run).absolute()
    record = loading.record_of(folder)
    translator = Translator.from_config(config, documents=True)
    return TrainedRun(folder, record, config_from_record(record.config), translator)


def records(folder: str | Path, *, all: bool = False) -> Any:
    """A DataFrame: a row for each run with a record below `folder`, as in a report (one for a run that is there twice):
    what it is, its score `SPLIT/METRIC` with `/low` and `/high` of the interval, and its speed. With `all` every score
    and loss, and every setting by its dotted name; `rerun_of` is the run id of what a rerun repeats. A killed run is
    still `running`. Warns of each record that cannot be read, and raises RecordError if there is none.
    """
    import pandas as pd

    found, problems = find_records(root := user_path(folder))
    for problem in problems:
        warnings.warn(problem, stacklevel=3)
    if not found:
        raise RecordError(f"{root}: no run record below this folder; give the runs_dir of trained runs")
    rows = [_row(path.parent, record.shown()) for path, record in found]
    frame = pd.DataFrame(rows)
    if all:
        return frame
    metrics = tuple({f"/{record.kind.metric}" for _, record in found})
    scores = [name for name in frame if name.removesuffix("/low").removesuffix("/high").endswith(metrics)]
    return frame[[*_COLUMNS, *scores, _SPEED]]


def _row(folder: Path, record: Record) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in _FACTS} | {"folder": str(folder)}
    row |= {name: getattr(record.training, name, None) for name in _MEASURED}
    row["position"] = position_of(record).label
    row["rerun_of"] = getattr(record.rerun_of, "run_id", None)
    row["data.key"] = getattr(record.data, "key", None)  # the settings of a corpus do not say that its files changed
    for score in record.scores:
        name = f"{score.split}/{score.metric}"
        row[name] = score.score
        if score.interval is not None:
            row |= {f"{name}/low": score.interval.low, f"{name}/high": score.interval.high}
    for key, value in flat(record.config).items():
        row.setdefault(key, tuple(value) if isinstance(value, list) else value)  # tuples, by which rows can be grouped
    return row
