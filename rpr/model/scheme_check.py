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
from rpr.model.layer_positions import LayerPositions
from rpr.model.positions import Scheme, Site
from rpr.model.transformer import EncoderDecoder, Transformer, build_model

PROMPTS, FED = torch.tensor([5, 3, 1]), 4  # pieces of three prompts, and those fed one by one after each
FAR = 300  # tokens; at least so far tables are tried


@lru_cache(maxsize=64)
def check_hooks(scheme: Scheme, site: Site, longest: int = 0) -> None:
    """Raises ConfigError for a scheme with which a layer computes something else for a text alone, or token by token
    with the cache, than in a padded batch; whose tables depend on max_distance, up to twice the `longest` text, as
    decoding asks for them; whose parameters get no gradient; where anything is not finite, or a hook fails.
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
    # 1. Two models of one layer, with the scheme on this side alone, and texts: two for each prompt, padded.
    none = Scheme(
        name="nothing", scheme="nothing", absolute="none", max_positions=1, query_log_scale=0.0, query_log_floor=1,
        random_positions=None,
    )  # fmt: skip
    config = TransformerConfig(
        vocabulary_size=40, num_layers=1, d_model=site.d_model, num_heads=site.num_heads, d_ff=8, dropout=0.0,
        norm="pre", norm_epsilon=1e-6, encoder_positions=None if site.causal else scheme,
        decoder_positions=scheme if site.causal else none,
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
    cotangent_XLM = torch.randn(hidden_XLM.shape)
    gradients = (
        torch.autograd.grad(hidden_XLM, [*learned.values()], cotangent_XLM, allow_unused=True) if learned else ()
    )
    for name, gradient in zip(learned, gradients, strict=True):
        if gradient is None or not bool(gradient.isfinite().all()):
            yield f"the parameter {name!r} gets {'no' if gradient is None else 'an infinite'} gradient"
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
        # 5. Tables of long texts.
        yield from () if layer is None else _far_tables(layer, farthest)


def _at_once(model: Transformer, texts_XL: Tensor) -> Tensor:
    if isinstance(model, EncoderDecoder):
        return model.encode(texts_XL).memory_BSM
    hidden_XLM: Tensor = model(texts_XL[:, :0], texts_XL)
    return hidden_XLM


def _far_tables(layer: LayerPositions, farthest: int) -> Iterator[str]:
    known: dict[tuple[str, int], Tensor] = {}  # the row of a distance
    for reached in sorted({*(9 << power for power in range(farthest.bit_length() - 3)), FAR, farthest}):
        for name, table in layer.at(reached, torch.device("cpu"))._asdict().items():
            if table is None:
                continue
            rows = table[..., None] if name == "bias" else table
            half = rows.shape[-2] // 2
            for distance in {sign * near for near in (0, 9, 18, FAR, reached) for sign in (-1, 1)}:
                if abs(distance) > reached or (layer.site.causal and distance > 0):
                    continue
                row = rows[..., half + max(-half, min(half, distance)), :]
                if _differ(known.setdefault((name, distance), row), row):
                    yield f"distance_tables returns {name} that depend on max_distance, not on each distance alone"


def _differ(result: Tensor, other: Tensor) -> bool:
    """Beyond rounding, in float32."""
    return result.shape != other.shape or not torch.allclose(result, other, rtol=1e-3, atol=1e-4)
