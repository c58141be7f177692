"""Small random models whose greedy translations differ, sentences for them, and runs with random weights."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rpr.compose.composition import compose_train
from rpr.config.train import TrainConfig
from rpr.data.vocabulary import BOS, EOS, PAD, Vocabulary, count_words
from rpr.decode.engine import search_of
from rpr.model.transformer import Transformer, build_model
from rpr.records.record import write_record
from rpr.runs.loading import VOCABULARY_NAME, TrainedModel
from tests.fake_records import fake_record, fake_score
from tests.shapes import changed, shape

NUM_TOKENS = 100
BASIC = shape(
    vocabulary_size=NUM_TOKENS, num_layers=2, d_model=32, num_heads=4, d_ff=48, dropout=0.0, norm="post",
    norm_epsilon=1e-2,  # differs visibly from CTranslate2's default of 1e-5
    absolute="none", max_positions=1, relative_keys=True, relative_values=True, clip_distance=3,
    tables="shared_by_heads", bos=BOS, pad=PAD,
)  # fmt: skip
NO_TABLES = {"relative_keys": False, "relative_values": False}
SINUSOIDAL = {**NO_TABLES, "absolute": "sinusoidal"}
LEARNED = {**NO_TABLES, "absolute": "learned", "max_positions": 64}


def make_model(**changes: Any) -> Transformer:
    """A random float32 model in eval mode, whose greedy outputs differ, and some end.

    Attention has larger weights than the feed-forward networks, and norms have factors of either sign; otherwise the
    last token would be repeated.
    """
    torch.manual_seed(0)
    model = build_model(changed(BASIC, **changes)).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name == "embedding_VM":
            nn.init.normal_(parameter, std=2 * BASIC.d_model**-0.5)
            parameter[EOS] *= 1.5  # sometimes the most probable
        elif ".tables." in name or "_positions." in name:
            nn.init.normal_(parameter, std=0.5)
        elif parameter.dim() == 2:
            gain = 0.5 if "feed_forward" in name else 1.5
            nn.init.normal_(parameter, std=gain * parameter.shape[1] ** -0.5)
        elif "norm" in name and name.endswith("weight"):
            nn.init.normal_(parameter)
        else:
            nn.init.normal_(parameter, std=0.1)
    return model


def sentences(lengths: Sequence[int], seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, NUM_TOKENS, (length,), generator=generator).tolist() for length in lengths]


# 40 sentences in no order of length: sources of 2 to 21 tokens with EOS, targets of 1 to 20: shorter and longer than
# each k. (For a source of EOS alone CTranslate2 returns nothing.)
SOURCES = [[*tokens, EOS] for tokens in sentences([1 + index * 7 % 20 for index in range(40)], seed=1)]
TARGETS = [[*tokens, EOS] for tokens in sentences([index * 11 % 20 for index in range(40)], seed=2)]


def make_vocabulary() -> Vocabulary:
    """As many tokens as the models have."""
    draw = np.random.default_rng(0)
    words = ["".join(chr(97 + int(letter)) for letter in draw.integers(0, 20, 5)) for _ in range(200)]
    return Vocabulary.learn(count_words([" ".join(words)]), NUM_TOKENS)


def make_export_inputs(
    model: Transformer, vocabulary: Vocabulary, config: TrainConfig, num_sentences: int = 12
) -> TrainedModel:
    """A run with this model; its record does not match the model's size."""
    score = fake_score(
        "test", 12.345, test_set="some test", signature="nrefs:1|case:mixed", num_sentences=3, checkpoint="step 7"
    )
    record = fake_record(
        name="some-run", run_id="0123abcd", command="rpr-cli train model=tiny", config=config.model_dump(mode="json"),
        git={"commit": "c0ffee", "dirty": False}, data=None, scores=[score],
    )  # fmt: skip
    evaluation = config.evaluation.model_copy(update={"max_extra_length": 10, "max_tokens_per_batch": 400})
    config = config.model_copy(update={"evaluation": evaluation})
    assert search_of(config.evaluation).beam_size == 4
    return TrainedModel(
        record=record, config=config, model=model, checkpoint="step 7", vocabulary=vocabulary, split="validation",
        sources=SOURCES[:num_sentences], references=TARGETS[:num_sentences],
    )  # fmt: skip


def write_random_run(
    folder: Path,
    settings: Sequence[str],
    vocabulary: Vocabulary,
    randomise: Callable[[Transformer], None],
    steps: Sequence[int] = (1,),
) -> Path:
    """A run with a checkpoint for each step, whose weights `randomise` makes, from the step as a seed."""
    config = compose_train(settings)
    record = fake_record(name=folder.name, run_id=config.run_id, config=config.model_dump(mode="json"), data=None)
    (folder / "checkpoints").mkdir(parents=True)
    write_record(folder / "record.json", record)
    vocabulary.save(folder / VOCABULARY_NAME)
    for step in steps:
        torch.manual_seed(step)
        model = build_model(config.transformer(len(vocabulary))).requires_grad_(False)
        torch.manual_seed(step + 1)
        randomise(model)
        weights = {f"model.{name}": weight for name, weight in model.state_dict().items()}
        torch.save({"state_dict": weights}, folder / "checkpoints" / f"step={step}.ckpt")
    return folder


def let_some_translations_end(model: Transformer) -> None:
    """Random weights; the logit of EOS is raised, without which no translation would end."""
    for weight in model.state_dict().values():
        if weight.ndim > 1:
            weight.copy_(torch.randn(weight.shape) * 0.4)
    eos = model.embedding_VM.mul_(1 / 0.4)[EOS]
    model.decoder[-1].around_feed_forward.norm.bias.copy_(5 * eos / eos.square().sum())
