"""Continuing prompts with a decoder-only model: the most probable piece each time, or one drawn at random, with the
key/value cache. A continuation depends on its prompt, the settings and its number alone, not on the batch, but for
rounding.
"""

# Shape suffixes: B rows still continued, V vocabulary.

import codecs
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from rpr.config.commands import SamplingConfig
from rpr.data.vocabulary import EOS, UNK, TextVocabulary, Vocabulary
from rpr.decode.engine import Engine, Rows, length_batches, pad_rows
from rpr.errors import ConfigError, not_finite
from rpr.model.beam_search import Extension, extensions, most_probable
from rpr.model.scheme_check import check_hooks
from rpr.model.transformer import Transformer

OnText = Callable[[str, bool], None]  # called with new text, and whether it is the continuation's last


@dataclass
class Continuation:
    """What follows a prompt. `text` has whole characters only (U+FFFD for bytes that are none) and ends before the stop
    text. `finished` is False if it ended at `max_new_tokens`.
    """

    text: str = ""
    pieces: list[int] = field(default_factory=list)  # without EOS
    finished: bool = False

    def add(self, piece: int, vocabulary: Vocabulary, stop: str | None) -> None:
        """Append a piece; EOS or the stop text ends the continuation."""
        if piece == EOS:
            self.finished = True
            return
        self.pieces.append(piece)
        if isinstance(vocabulary, TextVocabulary):  # bytes at the end that begin a character wait for its others
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            self.text = decoder.decode(vocabulary.decode_bytes(self.pieces))
        else:
            self.text = vocabulary.decode(self.pieces).rstrip("\ufffd")
        if stop is not None and (end := self.text.find(stop)) >= 0:
            self.text, self.finished = self.text[:end], True

    def settled(self, stop: str | None) -> str:
        """The text so far without an end that may become the stop text."""
        if self.finished or stop is None:
            return self.text
        longest = min(len(stop) - 1, len(self.text))
        held = next((size for size in range(longest, 0, -1) if self.text.endswith(stop[:size])), 0)
        return self.text[: len(self.text) - held]


def continuations(
    engine: Engine, vocabulary: Vocabulary, prompts: Rows, sampling: SamplingConfig, max_tokens_per_batch: int,
    on_text: OnText | None = None,
) -> list[list[Continuation]]:  # fmt: skip
    """The `num_samples` continuations of each prompt, in order. With `on_text`, which gets their text piece by piece,
    they are made one after another, otherwise in batches. The prompts are all that the model reads before, from BOS or
    with it: at least one token ID each. Raises ConfigError if a prompt is too long for the positions or, with
    `max_new_tokens`, for those that are learned, RunError if the model gives no finite probability.
    """
    # 1. A row for each sample, in batches of similar length, or alone.
    _check(engine.model, prompts, sampling)
    by_prompt = [[Continuation() for _ in range(sampling.num_samples)] for _ in prompts]
    rows = [(prompt, sample) for prompt in range(len(prompts)) for sample in range(sampling.num_samples)]
    lengths = [len(prompts[prompt]) + sampling.max_new_tokens for prompt, _ in rows]
    alone = ([row] for row in range(len(rows)))
    with engine.evaluating(), torch.inference_mode():
        for batch in length_batches(lengths, max_tokens_per_batch) if on_text is None else alone:
            of_batch = [rows[index] for index in batch]
            for step in _steps(engine.model, [prompts[prompt] for prompt, _ in of_batch], of_batch, sampling):
                if not bool(step.log_p_B.isfinite().all()):
                    raise not_finite(", so nothing follows")
                # 2. The new piece of each row; a stop text ends it as EOS does.
                for place, (row, piece) in enumerate(zip(step.sentence_B.tolist(), step.piece_B.tolist(), strict=True)):
                    prompt, sample = of_batch[row]
                    continuation = by_prompt[prompt][sample]
                    before = len(continuation.settled(sampling.stop))
                    continuation.add(piece, vocabulary, sampling.stop)
                    step.leaves_B[place] |= continuation.finished
                    # 3. What no later piece can change is shown.
                    if on_text is not None:
                        ends = bool(step.leaves_B[place])
                        on_text((continuation.text if ends else continuation.settled(sampling.stop))[before:], ends)
    return by_prompt


def _steps(
    model: Transformer, prompts: Rows, rows: Sequence[tuple[int, int]], sampling: SamplingConfig
) -> Iterator[Extension]:
    """The steps of a batch: all but the last piece of each prompt fills the cache at once."""
    device = model.embedding_VM.device
    state = model.start_decoding(pad_rows([prompt[:-1] for prompt in prompts], device))
    last_B = torch.tensor([prompt[-1] for prompt in prompts], device=device)
    limit_B = torch.full_like(last_B, sampling.max_new_tokens)
    choose = most_probable
    if sampling.temperature:
        choose = partial(draw, sampling, [random.Random(f"{sampling.seed} {sample}").random for _, sample in rows])

    def choose_known(log_p_BV: Tensor, row_B: Tensor) -> Tensor:
        return choose(log_p_BV.index_fill(1, torch.tensor([UNK], device=device), -torch.inf), row_B)

    return extensions(model, state, last_B, limit_B, EOS, choose_known)


def draw(sampling: SamplingConfig, streams: Sequence[Callable[[], float]], log_p_BV: Tensor, row_B: Tensor) -> Tensor:
    """Pieces drawn with p^(1 / temperature), renormalised over the `top_k` most probable ones (ties: the lower ids).
    `streams` give numbers in [0, 1) for each row; one is used.
    """
    values_BV, order_BV = log_p_BV.double().sort(dim=-1, descending=True, stable=True)
    less_BK = values_BV[:, : sampling.top_k] - values_BV[:, :1]  # so that the first stays finite at any temperature
    upto_BK = (less_BK / sampling.temperature).softmax(dim=-1).cumsum(dim=-1)
    numbers = [streams[row]() for row in row_B.tolist()]
    at_B1 = upto_BK[:, -1:] * torch.tensor(numbers, dtype=torch.float64, device=log_p_BV.device)[:, None]
    # The first place whose sum is above; NaN has none.
    place_B1 = torch.searchsorted(upto_BK, at_B1, right=True).clamp(max=upto_BK.shape[1] - 1)
    return order_BV.gather(1, place_B1)[:, 0]


def _check(model: Transformer, prompts: Rows, sampling: SamplingConfig) -> None:
    rows, longest = model.config.decoder_positions.num_learned, max(map(len, prompts), default=0)
    for stack in model.config.stacks():
        if problem := stack.too_long(longest, "a prompt"):
            raise ConfigError(f"prompt: {problem}")
        check_hooks(stack.scheme, stack.site, 1 << (longest + sampling.max_new_tokens).bit_length())
    if rows is not None and longest + sampling.max_new_tokens - 1 > rows:
        left = rows - longest + 1
        remedy = f"set max_new_tokens={left} or less" if left > 0 else "shorten the prompt"
        rule = f"after a prompt of {longest} tokens are more than the model's {rows} learned positions"
        raise ConfigError(f"max_new_tokens: {sampling.max_new_tokens} {rule}; {remedy}")
