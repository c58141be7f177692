"""Settings of a run that have no effect beside others, whatever their value: they are refused where they are typed.

Records keep them, and a run with them would have another id than the same run without.
"""

from collections.abc import Iterator, Mapping, Sequence

from rpr.config.train import TrainConfig
from rpr.model.config import StackShape
from rpr.model.positions import Scheme, of_user

OF_TRANSLATIONS = ("beam_size", "length_penalty", "min_length", "bleu_tokenizer")  # settings that documents lack
_IN_TRAINING = ("max_extra_length", "validation_sentences", "length_buckets")


def unread(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """The dotted key of each, and why it has no effect."""
    documents, exact = config.data.text is not None, config.hardware.precision == "64"
    if not documents:
        yield "evaluation.text_tokens", "on sentence pairs, whose splits are scored whole"
    for name in (*OF_TRANSLATIONS, *_IN_TRAINING) if documents else ():
        yield f"evaluation.{name}", "on documents, which are not translated"
    if config.evaluation.beam_size == 1:
        yield "evaluation.length_penalty", "with evaluation.beam_size=1, a greedy search"
    for section in ("hardware", "evaluation") if exact else ():
        yield f"{section}.matmul_precision", "with hardware.precision=64, as it is of float32 matmuls"
    yield from _of_positions(config.transformer(config.data.vocabulary_size).stacks())
    for name in ("column", "rows") if config.data.text is not None and config.data.text.python_library else ():
        yield f"data.text.{name}", "on Python's library, whose files are a document each"


def _of_positions(stacks: Sequence[StackShape]) -> Iterator[tuple[str, str]]:
    """Of one stack, and those of `position` that no stack reads."""
    for stack in stacks:
        for setting, why in _of_scheme(stack):
            yield f"position.{stack.name}.{setting}", why
            if not any(_reads(other, setting) for other in stacks):
                yield f"position.{setting}", why


def _reads(stack: StackShape, setting: str) -> bool:
    *entry, _ = setting.split(".")  # entries.NAME, of a pattern
    known = entry[1] in getattr(stack.scheme, "entries", {}) if entry else hasattr(stack.scheme, setting)
    return known and setting not in dict(_of_scheme(stack))


def _of_scheme(stack: StackShape) -> Iterator[tuple[str, str]]:
    """Those of users may read any setting."""
    entries: Mapping[str, Scheme] = getattr(stack.scheme, "entries", {})  # of a pattern
    for prefix, scheme in {"": stack.scheme, **{f"entries.{name}.": entry for name, entry in entries.items()}}.items():
        for setting, why in () if of_user(scheme) else scheme.never_read(stack.site):
            yield f"{prefix}{setting}", why
