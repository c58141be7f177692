"""Writing a decoder-only model of documents as Hugging Face transformers reads it: GPTNeoXForCausalLM for RoPE, else
GPT2LMHeadModel, whose table of positions is learned, of sinusoids, or zero; and reading it back for rpr.export.writing.

Both are pre-norm. Their input embeddings, apart from the output projection, contain the factor sqrt(d_model) and the
zero vector of BOS; other biases than those of the feed-forward layers are zero.
"""

# Shape suffixes: 3 queries, keys and values, H heads, D head width, M model width, B rows, L positions, V vocabulary.

import importlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from rpr.data.vocabulary import BOS, EOS, FIRST, PAD, UNK, ByteVocabulary
from rpr.decode.engine import Rows, target_scores
from rpr.decode.exported import library
from rpr.errors import RunError
from rpr.export.ctranslate2 import POSITION_ROWS, input_embedding, parts_of, position_table
from rpr.model.config import TransformerConfig
from rpr.model.layers import Linear
from rpr.model.positions.scheme import Rotation, Site
from rpr.model.transformer import Transformer

# Names of the embedding, its projection to scores, the last norm and the layers; and of the parts of a layer.
_GPT2 = (
    ("transformer.wte", "lm_head", "transformer.ln_f", "transformer.h"),
    {"norm_1": "ln_1", "norm_2": "ln_2", "qkv": "attn.c_attn", "output": "attn.c_proj", "inner": "mlp.c_fc",
     "outer": "mlp.c_proj"},
)  # fmt: skip
_NEOX = (
    ("gpt_neox.embed_in", "embed_out", "gpt_neox.final_layer_norm", "gpt_neox.layers"),
    {"norm_1": "input_layernorm", "norm_2": "post_attention_layernorm", "qkv": "attention.query_key_value",
     "output": "attention.dense", "inner": "mlp.dense_h_to_4h", "outer": "mlp.dense_4h_to_h"},
)  # fmt: skip
_SPECIAL = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}


def unrepresentable(config: TransformerConfig, tokenizer: str) -> str | None:
    """One line on why transformers has no exact form of this model; None if it has."""
    if refused := config.block_refused("GPT-2 and GPT-NeoX"):
        return refused
    scheme, site = config.stacks()[-1][1:3]
    rotation = scheme.rotation(site)
    no_form = rotation is None and any(part.acts_in_layers for part in scheme.parts)
    if rotation is not None:  # a proportion is of whole heads alone, and not with YaRN
        of_part = rotation.proportion != 1 and (rotation.yarn is not None or rotation.width != site.d_head)
        no_form = of_part or bool(rotation.llama3 or rotation.longrope or scheme.absolute != "none")
    reasons = {
        f"model.architecture: {config.architecture}": config.architecture != "decoder_only",
        f"data.tokenizer: {tokenizer}": tokenizer != "bytes",
        f"model.norm: {config.norm}": config.norm != "pre",
        f"position: {scheme.label}": scheme.windowed or no_form,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    return None if reason is None else f"{reason} has no exact form in transformers; use format=safetensors"


def position_rows(config: TransformerConfig, longest: int) -> int | None:
    """The number of positions of the exported model, at least `longest`; None: unlimited."""
    (stack,) = config.stacks()
    if stack.scheme.changes_queries:
        return None
    return max(POSITION_ROWS, longest, stack.scheme.num_learned or 0)


def write_model(model: Transformer, _names: Sequence[str], folder: Path, longest: int) -> None:
    """Write config.json, generation_config.json, model.safetensors and the tokenizer to an existing `folder`."""
    # 1. The settings, by the names of GPT-2 or, with rotations, GPT-NeoX.
    config = model.config
    (stack,) = model.stacks()
    rotation = stack.shape.scheme.rotation(stack.shape.site)
    rows = position_rows(config, longest)
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    common = {"vocab_size": config.vocabulary_size, "tie_word_embeddings": False, "dtype": "float32", **ids}
    own = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_positions": rows, "n_embd": config.d_model,
        "n_layer": config.num_layers, "n_head": config.num_heads, "n_inner": config.d_ff,
        "activation_function": config.activation, "layer_norm_epsilon": config.norm_epsilon,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    }  # fmt: skip
    if rotation is not None:
        own = _neox_config(config, rotation, stack.shape.site, longest)
    _write(folder / "config.json", {**common, **own})
    _write(folder / "generation_config.json", {"do_sample": False, "suppress_tokens": [PAD, BOS], **ids})
    # 2. The weights.
    weights = _weights(model, rotation, rows)
    weights = {name: weight.detach().float().cpu().contiguous() for name, weight in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    # 3. The tokenizer of bytes.
    _write(folder / "tokenizer.json", _tokenizer())
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # `<s>` in a text is text
        "padding_side": "left",  # generation continues the end of every row of a batch
        "pad_token": _SPECIAL[PAD], "unk_token": _SPECIAL[UNK],
        "bos_token": _SPECIAL[BOS], "eos_token": _SPECIAL[EOS],
    }  # fmt: skip
    _write(folder / "tokenizer_config.json", settings if rows is None else {**settings, "model_max_length": rows})


def _neox_config(config: TransformerConfig, rotation: Rotation, site: Site, longest: int) -> dict[str, Any]:
    # 1. What is rotated, and how it is scaled.
    share = rotation.width / site.d_head
    if int(share * site.d_head) < rotation.width:  # as transformers computes the width
        share = math.nextafter(share, 1)
    rope = {"rope_type": "default", "rope_theta": rotation.base, "partial_rotary_factor": share}
    if rotation.linear_scale != 1:
        rope |= {"rope_type": "linear", "factor": rotation.linear_scale}
    if rotation.proportion != 1:
        rope |= {"rope_type": "proportional", "partial_rotary_factor": rotation.proportion}
    if rotation.yarn is not None:
        factor, trained_length = rotation.yarn
        longest = round(factor * trained_length)  # transformers 4.53 takes their ratio for the factor
        rope |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained_length}
    # 2. The model.
    return {
        "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox",
        "max_position_embeddings": longest, "hidden_size": config.d_model,
        "num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads,
        "intermediate_size": config.d_ff, "hidden_act": config.activation,
        "layer_norm_eps": config.norm_epsilon,
        "use_parallel_residual": False,
        "attention_bias": False,
        "rope_parameters": rope,
        # Read by transformers 4, which has no rope_parameters, and by the first 5, which replace its share.
        "rotary_pct": rope["partial_rotary_factor"],
        "rotary_emb_base": rotation.base,
        "rope_scaling": None if rope["rope_type"] == "default" else rope,
    }  # fmt: skip


def _weights(model: Transformer, rotation: Rotation | None, rows: int | None) -> dict[str, Tensor]:
    (stack,), width = model.stacks(), model.config.d_model
    (embedding, projection, last_norm, layers), names = _GPT2 if rotation is None else _NEOX
    modules: dict[str, nn.Module] = {last_norm: stack.norm}
    for number, layer in enumerate(stack.layers):
        modules |= {f"{layers}.{number}.{names[part]}": module for part, module in parts_of(layer).items()}
    weights: dict[str, Tensor] = {
        f"{prefix}.{name}": weight for prefix, part in modules.items() for name, weight in part.named_parameters()
    }
    for prefix, module in modules.items():
        if isinstance(module, Linear) and rotation is None:  # GPT-2's are transposed, and all have a bias
            weights[f"{prefix}.weight"] = module.weight.T
            weights.setdefault(f"{prefix}.bias", torch.zeros(module.out_features))
        elif rotation is not None and prefix.endswith(names["qkv"]):
            weights[f"{prefix}.weight"] = _by_head(weights[f"{prefix}.weight"], rotation, stack.shape.site)
    if rows is not None:
        table = torch.zeros(rows, width) if stack.positions is None else position_table(model, stack.positions, rows)
        weights["transformer.wpe.weight"] = table
    inputs, outputs = input_embedding(model) * math.sqrt(width), model.embedding_VM
    return weights | {f"{embedding}.weight": inputs, f"{projection}.weight": outputs}


def _by_head(weight: Tensor, rotation: Rotation, site: Site) -> Tensor:
    width = rotation.width
    order = [*range(0, width, 2), *range(1, width, 2)] if rotation.interleaved else [*range(width)]
    qkv_3HDM = weight.detach().clone().view(3, site.num_heads, site.d_head, site.d_model)
    qkv_3HDM[:2, :, :width] = qkv_3HDM[:2][:, :, order]
    return qkv_3HDM.transpose(0, 1).reshape(-1, site.d_model)


def _tokenizer() -> dict[str, Any]:
    """Bytes as pieces, after BOS, in the form of the library tokenizers, whose names of bytes are those of GPT-2."""
    tokenizers = importlib.import_module("tokenizers")  # which transformers needs
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = (byte for byte in range(256) if byte not in visible)
    names = {byte: chr(byte) for byte in visible} | {byte: chr(256 + number) for number, byte in enumerate(hidden)}
    vocabulary = {name: index for index, name in _SPECIAL.items()}
    vocabulary |= {names[byte]: FIRST + byte for byte in range(256)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in _SPECIAL.values()])
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    template = tokenizers.processors.TemplateProcessing
    tokenizer.post_processor = template(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)])
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    return document


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")


class TransformersScorer:
    """An export of format=transformers, in float32 on the CPU."""

    def __init__(self, folder: Path) -> None:
        transformers = library("transformers")
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def score(self, sources: Rows, targets: Rows, max_tokens: int) -> list[Tensor]:
        """As Engine.score; the sources are empty. Raises RunError if the exported tokenizer does not give these targets
        from their text.
        """
        for target in targets:
            text = ByteVocabulary().decode_bytes(target).decode("utf-8", "ignore")  # a window may cut a character
            expected = [BOS, *ByteVocabulary().encode(text)]
            if self._tokenizer(text)["input_ids"] != expected or self._tokenizer.decode(expected[1:]) != text:
                raise RunError(
                    "export: the exported tokenizer does not reproduce the pieces of the data; the export was removed: "
                    "report this with the run's record"
                )

        def log_p(_: Tensor, inputs_BL: Tensor) -> Tensor:
            output = self._model(inputs_BL, attention_mask=torch.ones_like(inputs_BL), use_cache=False)
            log_p_BLV: Tensor = output.logits.double().log_softmax(-1)
            return log_p_BLV

        return target_scores(log_p, sources, targets, max_tokens)
