"""Writing an export: to a temporary folder, compared with its model, and only then renamed."""

import copy
import glob
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rpr.data.vocabulary import BOS, EOS
from rpr.decode import exported
from rpr.decode.engine import SEARCH_SETTINGS, Engine, Progress, Rows, search_of
from rpr.decode.exported import Kind, stored_tensors
from rpr.errors import ConfigError, RunError
from rpr.export import ctranslate2, transformers
from rpr.export.ctranslate2 import CTranslate2Scorer
from rpr.export.transformers import TransformersScorer
from rpr.io.atomic import exclusive, replacing
from rpr.io.escape import escape_markdown, escape_tree
from rpr.kinds import kind_of_metric
from rpr.model.beam_search import Search
from rpr.model.cache import float32_matmuls
from rpr.model.config import TransformerConfig
from rpr.model.positions import codes
from rpr.model.rotation import float32_angles
from rpr.model.transformer import Transformer
from rpr.records.position import position_of
from rpr.runs.loading import VOCABULARY_NAME, TrainedModel
from rpr.version import __version__

CARD_VERSION = 4
_LOOKS: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
_TEMPLATES = Environment(loader=PackageLoader("rpr.export"), undefined=StrictUndefined, **_LOOKS)
_TEMPLATES.filters["digits"] = lambda metric: kind_of_metric(metric).printed_digits
_README = _TEMPLATES.get_template("README.md.j2")
_PROGRAMS: dict[str, Any] = {"ctranslate2": ctranslate2, "transformers": transformers}
# Tolerance for the log p of one token: ROUNDINGS times the rounding error of our own float32, angles of RoPE included,
# against float64 on the same tokens. Measured on a trained model of 3 layers: 9.6e-6 for CTranslate2; 1.8e-4 with a
# wrong layer norm epsilon (1e-5 for 1e-6), which changes none of 60 translations.
ROUNDINGS, LEAST_TOLERANCE = 5, 1e-5
# Tolerance for hidden states and log p in float64. Sums of a thousand products of size 10 are exact to 1e-12; the same
# sum is not always the same to the last bit (2.1e-15 with a scheme that adds to the scores).
EXACT = 1e-8
Program = Engine | CTranslate2Scorer | TransformersScorer  # that scores given targets


@dataclass(frozen=True)
class Parity:
    """The result of a comparison. `largest_difference` is that of the log p of any token, EOS included, in our greedy
    translations and the references, and of a token generated after half of them; `identical` counts greedy
    translations, None if the export has none; `margins` are of the others log p of our first other token minus that of
    theirs, under our model.
    """

    sentences: int
    identical: int | None
    margins: tuple[float, ...]
    largest_difference: float
    tolerance: float

    @property
    def different(self) -> int:
        """The translations that no tie within rounding explains."""
        return sum(not margin < self.tolerance for margin in self.margins)

    @property
    def passed(self) -> bool:
        return not self.different and self.largest_difference <= self.tolerance < math.inf

    def __str__(self) -> str:
        log_p = f"log p of a token differs by at most {self.largest_difference:.1e} (tolerance: {self.tolerance:.0e})"
        if self.identical is None:
            return log_p
        return (
            f"{self.identical} greedy translations are identical to the model's, {len(self.margins) - self.different} "
            f"differ at a tie within rounding, {self.different} by more; {log_p}"
        )


def parity(
    model: Transformer,
    engine: Program,
    sources: Rows,
    references: Rows,
    search: Search,
    *,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> Parity:
    """Compare an engine's greedy search, if it has one and there are sources, and its scores with our own model in
    float64. Sources (empty for windows of documents) and references are token IDs with EOS; `tolerance` is of the log p
    of a token, by default derived from ROUNDINGS. Translations whose first other tokens differ by less are a tie, which
    another order of summation may swap.
    """
    assert len(sources) == len(references)
    exact, max_tokens = Engine(in_float64(model)), search.max_tokens_per_batch
    targets, both = [list(reference[:-1]) for reference in references], sources
    # 1. Our greedy translations, which are scored, too.
    ours: Rows = []
    if all(sources):
        ours = _greedy(exact, sources, search, progress)
        targets, both = [*map(_pieces, ours), *targets], [*sources, *sources]
    our_scores = exact.score(both, targets, max_tokens, progress if not ours else None)
    # 2. How far our own float32 is from them.
    if tolerance is None:
        with float32_matmuls("highest"), float32_angles():  # a run's hardware may allow less than these matmuls
            # An engine may have made the model float64, in place.
            rounded = Engine(copy.deepcopy(model).float()).score(both, targets, max_tokens)
        tolerance = max(LEAST_TOLERANCE, ROUNDINGS * _largest_difference(our_scores, rounded))
    # 3. The other engine's translations and scores.
    margins: list[float] = []
    identical, generator = None, engine if isinstance(engine, CTranslate2Scorer) and engine.generator else None
    if ours and generator is None and not isinstance(engine, TransformersScorer):
        margins = _margins(exact, sources, ours, _greedy(engine, sources, search), max_tokens)
        identical = len(sources) - len(margins)
    difference = _largest_difference(our_scores, engine.score(both, targets, max_tokens))
    # 4. The token with which a generator continues the first half of a target.
    if generator is not None:
        starts = [list(target[: -(-len(target) // 2)]) for target in targets]
        added = generator.continued([[*source, BOS, *start] for source, start in zip(both, starts, strict=True)])
        ends = [[*start, *([piece] * (piece != EOS))] for start, (piece, _) in zip(starts, added, strict=True)]
        scored = zip(starts, exact.score(both, ends, max_tokens), strict=True)
        next_scores = [of_row[len(start) :][:1] for start, of_row in scored]
        difference = max(difference, _largest_difference(next_scores, [[log_p] for _, log_p in added]))
    return Parity(len(sources), identical, tuple(margins), difference, tolerance)


def in_float64(model: Transformer) -> Transformer:
    """A float64 copy with the default attention, so that a check does not depend on the configured kernel."""
    exact = copy.deepcopy(model).double().eval()
    exact.use_attention("auto")
    return exact


def largest_of(differences: Tensor) -> float:
    """The largest absolute value, 0 of nothing; NaN counts as infinite."""
    return float(differences.abs().nan_to_num(nan=torch.inf).max()) if differences.numel() else 0.0


def _largest_difference(ours: Sequence[Tensor], others: Sequence[Sequence[float] | Tensor]) -> float:
    pairs = zip(ours, others, strict=True)
    return largest_of(torch.cat([our - torch.as_tensor(their, dtype=torch.float64) for our, their in pairs]))


def _greedy(
    engine: Engine | CTranslate2Scorer, sources: Rows, search: Search, progress: Progress | None = None
) -> Rows:
    if isinstance(engine, CTranslate2Scorer):
        return engine.greedy(sources, search)
    greedy = replace(search, beam_size=1, n_best=1, length_penalty=0.0)
    n_best_lists = engine.search(sources, greedy, progress=progress)
    return [[*hypotheses[0].pieces, *([EOS] * hypotheses[0].finished)] for hypotheses in n_best_lists]


def _pieces(row: Sequence[int]) -> list[int]:
    return [piece for piece in row if piece != EOS]


def _margins(exact: Engine, sources: Rows, ours: Rows, others: Rows, max_tokens: int) -> list[float]:
    """Of the translations that differ; infinite if one only goes on where the other stops."""
    margins = []
    for source, our, their in zip(sources, ours, others, strict=True):
        if _pieces(our) == _pieces(their):
            continue
        at = next((at for at, tokens in enumerate(zip(our, their, strict=False)) if len({*tokens}) > 1), None)
        margin = math.inf
        if at is not None:
            scores = exact.score([source] * 2, [our[: at + 1], their[: at + 1]], max_tokens)
            margin = (scores[0][at] - scores[1][at]).item()
        margins.append(margin)
    return margins


def check_supported(kind: Kind, config: TransformerConfig, tokenizer: str, out: Path | None = None) -> None:
    """Before anything is computed: raises ConfigError if `out` exists and is no export, or the program cannot represent
    the model or the pieces of data.tokenizer, or is not installed.
    """
    if out is not None and out.exists() and not exported.is_export(out):
        raise ConfigError(
            f"output_dir: {out} exists and is not an export; only an earlier export is replaced: choose another folder"
        )
    if kind == "safetensors":
        return
    if (reason := _PROGRAMS[kind].unrepresentable(config, tokenizer)) is not None:
        raise ConfigError(reason)
    exported.library(kind)


def export(kind: Kind, out: Path, trained: TrainedModel, progress: Progress | None = None) -> Parity:
    """Write the folder `out` atomically, replacing an earlier export there. Raises ConfigError as `check_supported`,
    RunError if the export does not match the model, or the folder cannot be written.
    """
    check_supported(kind, trained.model.config, trained.config.data.tokenizer, out)
    try:
        with exclusive(out.parent, glob.escape(out.name)), replacing(out) as temporary:
            temporary.mkdir()
            write_files(kind, temporary, trained)
            proven = prove(kind, temporary, trained, progress)
            if not proven.passed:
                raise RunError(
                    f"export: the {kind} export does not match the model ({proven}); it was removed: report this with "
                    "the run's record, or mend your scheme, whose hooks may read its settings and parameters alone"
                )
            document = card(kind, trained, proven)
            text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
            (temporary / exported.CARD_NAME).write_text(text, "utf-8")
            # The card as Markdown; no text of a record may be in code, where escapes are shown.
            words = {"tokenizer": trained.config.data.tokenizer, "verified": verified(trained, proven)}
            readme = _README.render(escape_tree({**document, **words}, escape_markdown))
            (temporary / "README.md").write_text(readme, "utf-8")
        return proven
    except OSError as error:
        raise RunError(
            f"output_dir: {out} cannot be written ({error.strerror or error}); the partial export was removed: "
            "fix this, or choose another folder"
        ) from None


def write_files(kind: Kind, folder: Path, trained: TrainedModel) -> None:
    """Write all but the card and README to an empty folder, after `check_supported`; raises OSError if it cannot be."""
    model, vocabulary = trained.model, trained.vocabulary
    vocabulary.save(folder / VOCABULARY_NAME)
    if kind != "safetensors":
        names = [vocabulary.piece(index) for index in range(len(vocabulary))]
        _PROGRAMS[kind].write_model(model, names, folder, longest(trained))
        return
    weights = {name: weight.detach().cpu().contiguous() for name, weight in stored_tensors(model).items()}
    try:
        save_file(weights, folder / exported.WEIGHTS_NAME, metadata={"format": "pt"})
    except SafetensorError as error:  # the safetensors writer wraps OSError
        raise OSError(exported.reason_of(error)) from None
    settings = exported.Settings(
        format=exported.FORMAT,
        version=exported.VERSION,
        rpr=__version__,
        schemes=codes(stack.scheme for stack in model.config.stacks()),
        shape=model.config,
        **{name: getattr(trained.config.evaluation, name) for name in SEARCH_SETTINGS},
    )
    (folder / exported.SETTINGS_NAME).write_text(settings.model_dump_json(indent=1) + "\n", "utf-8")


def prove(kind: Kind, folder: Path, trained: TrainedModel, progress: Progress | None = None) -> Parity:
    """Read the files in `folder` back and compare them with the model. A safetensors export must have bit-identical
    weights, and the same translations and log p in float64, up to rounding, on the model's device.
    """
    model, search = trained.model, search_of(trained.config.evaluation, greedy=True)
    sentences = (trained.sources, trained.references, search)
    if kind == "safetensors":
        copied = exported.load_exported_model(folder).to(model.embedding_VM.device)
        theirs = stored_tensors(copied)
        for name, weight in stored_tensors(model).items():
            if weight.dtype != theirs[name].dtype or not torch.equal(weight, theirs[name]):
                raise RunError(
                    f"export: {name} read back from safetensors differs from the model; the export was removed: report "
                    "this with the run's record"
                )
        return parity(model, Engine(copied.double()), *sentences, tolerance=EXACT, progress=progress)
    if kind == "transformers":
        return parity(model, TransformersScorer(folder), *sentences, progress=progress)
    generator, threads = model.config.architecture == "decoder_only", torch.get_num_threads()
    program = CTranslate2Scorer(folder, trained.vocabulary, threads, generator=generator)
    return parity(model, program, *sentences, progress=progress)


# The card


def longest(trained: TrainedModel) -> int:
    """Positions that an export must have: BOS, and a window or the longest sentence that proves it, translated."""
    if (window := trained.config.data.context_length) is not None:
        return 1 + window
    return 1 + max(map(len, (*trained.sources, *trained.references))) + trained.config.evaluation.max_extra_length


def card(kind: Kind, trained: TrainedModel, proven: Parity) -> dict[str, Any]:
    """The card as plain data, with the run's record; deterministic for the same run and library versions."""
    model, record, lengths = trained.model, trained.record, [len(reference) - 1 for reference in trained.references]
    schemes = [stack.scheme for stack in model.config.stacks()]
    versions, rows = {"rpr": __version__, "torch": record.versions.get("torch")}, None
    if kind != "safetensors":
        versions[kind] = str(exported.library(kind).__version__)
        rows = _PROGRAMS[kind].position_rows(model.config, longest(trained))
    return {
        "version": CARD_VERSION,
        "kind": kind,
        "checkpoint": trained.checkpoint,
        "outcome": record.outcome or "finished",
        "record": record.model_dump(mode="json", by_alias=True),
        "synthetic": record.synthetic,
        "documents": trained.documents,
        "architecture": model.config.architecture,
        "positions": position_of(record).label,
        "zero_bos": model.config.zero_bos,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "position_rows": rows,
        "absolute": any(scheme.absolute != "none" for scheme in schemes),
        "same_bias_beyond": kind == "ctranslate2" and any(part.has_bias and part.reach is None for part in schemes),
        "parity": {"split": trained.split, "shortest": min(lengths), "longest": max(lengths), **asdict(proven)},
        "versions": versions,
    }


def verified(trained: TrainedModel, proven: Parity) -> str:
    """What an export was compared on, and how it differs from the model."""
    lengths = [len(reference) - 1 for reference in trained.references]
    of_windows = f" ({min(lengths)} to {max(lengths)} tokens)" if trained.documents else ""
    return f"{proven.sentences} {trained.items} of {trained.split}{of_windows}: {proven}"
