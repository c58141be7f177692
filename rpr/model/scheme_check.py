"""One check of a position scheme before any work: a small model of it computes the same numbers however it is asked."""

# Shape suffixes: B sentences, N hypotheses of each, X = B N rows, L positions, M model width.

import traceback
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from rpr.errors import ConfigError, RprError
from rpr.model.cache import float32_matmuls
from rpr.model.config import TransformerConfig
from rpr.model.positions import Scheme, Site, Tables
from rpr.model.transformer import EncoderDecoder, Transformer, build_model
from rpr.model.vectors import rows_of

PROMPTS, FED = torch.tensor([5, 3, 1]), 4  # pieces of three prompts, and those fed one by one after each
FAR = 300  # tokens; at least so far tables are tried


@lru_cache(maxsize=64)
def check_hooks(scheme: Scheme, site: Site, longest: int = 0) -> None:
    """Raises ConfigError for a scheme with which a layer computes something else for a text alone, or token by token,
    than in a padded batch; whose tables depend on max_distance, up to twice the `longest` text; whose parameters get no
    gradient; where anything is not finite, or a hook fails.
    """
    for part in scheme.parts:
        try:
            with torch.random.fork_rng(devices=[]), float32_matmuls("highest"):
                problem = next(_problems(part, site, max(FAR, 2 * longest)), None)
        except RprError:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if Path(torch.__file__).parent not in Path(frame.filename).parents][-1]
            where = f"{Path(own.filename).name}:{own.lineno}, in {own.name}"
            problem = f"{type(error).__name__}: {' '.join(str(error).split())} ({where})"
        if problem is not None:
            side = "decoder" if site.causal else "encoder"
            raise ConfigError(f"position.{side}: the scheme {part.scheme} of position={part.name}: {problem}")


def _problems(scheme: Scheme, site: Site, farthest: int) -> Iterator[str]:
    # 1. Two models of one layer, and texts: two for each prompt, padded.
    config = TransformerConfig(
        vocabulary_size=40, num_layers=1, d_model=site.d_model, num_heads=site.num_heads, d_ff=8, dropout=0.0,
        norm="pre", norm_epsilon=1e-6, encoder_positions=None if site.causal else scheme, decoder_positions=scheme,
        architecture="decoder_only" if site.causal else "encoder_decoder",
    )  # fmt: skip
    torch.manual_seed(1)
    again = build_model(config).eval()
    torch.manual_seed(0)
    model = build_model(config)
    texts_BNL = torch.randint(3, 40, (len(PROMPTS), 2, int(PROMPTS.max()) + FED))
    for text_NL, prompt in zip(texts_BNL, PROMPTS.tolist(), strict=True):
        text_NL[1, :prompt] = text_NL[0, :prompt]
        text_NL[:, prompt + FED :] = config.pad
    texts_XL, stack = texts_BNL.flatten(0, 1), model.stacks()[0]
    # 2. Gradients at the initial values, in training mode.
    layer, hidden_XLM = stack.layers[0].self_attention.tables, _at_once(model, texts_XL)
    learned = {name: value for part in (layer, stack.positions) if part for name, value in part.named_parameters()}
    torch.autograd.backward(hidden_XLM, torch.randn(hidden_XLM.shape))
    for name, value in learned.items():
        if value.grad is None or not bool(value.grad.isfinite().all()):
            yield f"the parameter {name!r} gets {'no' if value.grad is None else 'an infinite'} gradient"
    with torch.inference_mode():
        # 3. Finite, and the same from saved weights and alone, at other values: zeros may hide something.
        for value in learned.values():
            value.add_(0.1 * torch.randn_like(value) * value.abs().where(value != 0, torch.ones(())))
        again.load_state_dict(model.eval().state_dict())
        whole_XLM = _at_once(model, texts_XL)
        if not bool(whole_XLM.isfinite().all()):
            yield "what a layer returns is not finite"
        if _differ(_at_once(again, texts_XL), whole_XLM):
            yield "with the same parameters and buffers another model gives other values; save what a hook draws"
        for text_L, whole_LM in zip(texts_XL, whole_XLM, strict=True):
            length = int((text_L != config.pad).sum())
            if _differ(_at_once(model, text_L[None, :length])[0], whole_LM[:length]):
                yield "a text alone gives other values than in a padded batch; a hook may read its row and visible keys"
        # 4. The same token by token, after prompts and from the start.
        for prompts_B in (PROMPTS, 0 * PROMPTS) if site.causal else ():
            upto_L = torch.arange(int(prompts_B.max()))
            state = model.start_decoding(texts_BNL[:, 0, : len(upto_L)] * (upto_L < prompts_B[:, None]))
            for step in range(FED):
                at_X = torch.arange(len(whole_XLM)), prompts_B.repeat_interleave(2) + step
                if _differ(model.next_hidden(texts_XL[at_X][:, None], state), whole_XLM[at_X]):
                    yield "token by token, with cached keys, it gives other values than at once; a hook reads others"
        # 5. Tables of long texts have the rows of shorter ones.
        whole = Tables() if layer is None else layer.at(farthest, torch.device("cpu"))
        for reached in (9, 18, 36, 72, FAR, 600, 1200, 2400):
            distances = torch.arange(-reached, 1 if site.causal else reached + 1)
            for name, table in whole._asdict().items():
                if table is None or layer is None or reached > farthest:
                    continue
                both = (table, getattr(layer.at(reached, torch.device("cpu")), name))
                rows = (part[..., None] if name == "bias" else part for part in both)
                if _differ(*(part[..., rows_of(distances, part.shape[-2]), :] for part in rows)):
                    yield f"distance_tables returns {name} that depend on max_distance, not on each distance alone"


def _at_once(model: Transformer, texts_XL: Tensor) -> Tensor:
    if isinstance(model, EncoderDecoder):
        return model.encode(texts_XL).memory_BSM
    hidden_XLM: Tensor = model(texts_XL[:, :0], texts_XL)
    return hidden_XLM


def _differ(result: Tensor, other: Tensor) -> bool:
    return result.shape != other.shape or not torch.allclose(result, other, rtol=1e-3, atol=1e-4)
