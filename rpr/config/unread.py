"""Settings of a run that have no effect beside others, whatever their value: they are refused where they are typed.

Records keep them, and a run with them would have another id than the same run without.
"""

from collections.abc import Iterator

from rpr.config.train import TrainConfig
from rpr.model.positions import of_user

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
    stacks = {"encoder": config.position.encoder, "decoder": config.position.decoder}
    for name, scheme in stacks.items():
        if scheme.absolute != "learned" and not of_user(scheme):
            yield f"position.{name}.max_positions", "without learned positions there"
    if not any(scheme.absolute == "learned" or of_user(scheme) for scheme in stacks.values()):
        yield "position.max_positions", "without learned positions"
    if not hasattr(stacks["encoder"], "encoder_form"):
        yield "position.encoder_form", "without ALiBi in the encoder"
    position = "position" if config.model.architecture == "decoder_only" else "position.decoder"
    entries = getattr(stacks["decoder"], "entries", ())  # of a pattern
    for scheme_key in (position, *(f"{position}.entries.{name}" for name in entries)):
        yield f"{scheme_key}.encoder_form", "in a decoder"
    for name in ("column", "rows") if config.data.text is not None and config.data.text.python_library else ():
        yield f"data.text.{name}", "on Python's library, whose files are a document each"
