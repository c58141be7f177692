"""Decoder-only models beside other libraries': training steps, scoring and generation, all in turn in one process.

    pip install torch==2.13.0 transformers x-transformers litgpt && pip install -e .
    python sweeps/measured/lm_speed.py steps d_model=384 num_layers=6 length=1024 > FILE.json

Everybody gets the same random bytes, feed-forward layers of 4 d, GELU, tied embeddings, heads of 64 (d 128: of 32), no
dropout, no gradient clipping and torch's fused AdamW. `steps` are forward, loss, backward and update; `forward` scores
without gradients; `generate` continues prompts of 64 bytes greedily with the key/value cache; `shares` profiles what a
step's processor time is spent on.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rpr.commands.bench import BatchShape, Timing, step_flops, take_turns
from rpr.compose.composition import compose_train
from rpr.config.commands import SamplingConfig
from rpr.config.train import TrainConfig
from rpr.data.vocabulary import ByteVocabulary
from rpr.decode.engine import Engine
from rpr.decode.sampling import continuations
from rpr.export.ctranslate2 import write_model
from rpr.training.loss import label_smoothed_loss
from rpr.training.module import TranslationModule

VOCABULARY = 260  # bytes and our special pieces
PROMPT = 64
CPU = torch.device("cpu")
Loss = Callable[[Tensor, Tensor], Tensor]
Shape = dict[str, int]
DEFAULT = {"d_model": 128, "num_layers": 4, "length": 256, "batch": 8, "rounds": 3, "steps": 2}


def num_heads(shape: Shape) -> int:
    return shape["d_model"] // (64 if shape["d_model"] >= 384 else 32)


def config_of(shape: Shape, position: str = "none") -> TrainConfig:
    settings = [f"model.{key}={shape[key]}" for key in ("d_model", "num_layers")]
    if position == "learned":
        settings.append(f"position.max_positions={max(256, shape['length'] + PROMPT)}")
    return compose_train(
        [
            *("data=python_library", "model=tiny", "model.architecture=decoder_only", "optim=lm"),
            *("model.dropout=0", "model.activation=gelu", f"model.d_ff={4 * shape['d_model']}"),
            *(f"model.num_heads={num_heads(shape)}", f"position={position}", *settings),
        ]
    )


def ours(shape: Shape, position: str) -> tuple[nn.Module, Loss]:
    module = TranslationModule(config_of(shape, position), VOCABULARY)

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        hidden = module.model(inputs[:, :0], inputs).flatten(0, 1)
        return label_smoothed_loss(hidden, module.model.embedding_VM, targets.flatten(), 0.0) / targets.numel()

    return module, loss


def of_logits(logits: Callable[[Tensor], Tensor]) -> Loss:
    return lambda inputs, targets: F.cross_entropy(logits(inputs).flatten(0, 1).float(), targets.flatten())


def hugging_face(shape: Shape, name: str) -> tuple[nn.Module, Loss]:
    from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig

    d, layers, longest = shape["d_model"], shape["num_layers"], shape["length"] + PROMPT
    common = {"vocab_size": VOCABULARY, "tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": 3}
    if name == "GPT-2":
        config = GPT2Config(
            n_embd=d, n_layer=layers, n_head=num_heads(shape), n_positions=longest, activation_function="gelu",
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common,
        )  # fmt: skip
    else:
        config = GPTNeoXConfig(
            hidden_size=d, num_hidden_layers=layers, num_attention_heads=num_heads(shape), intermediate_size=4 * d,
            max_position_embeddings=longest, use_parallel_residual=False,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}, **common,
        )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model, of_logits(lambda inputs: model(input_ids=inputs, use_cache=False).logits)


def x_transformers(shape: Shape, name: str) -> tuple[nn.Module, Loss]:
    from x_transformers import Decoder, TransformerWrapper

    options = {
        "RoPE": {"rotary_pos_emb": True, "attn_flash": True},
        "ALiBi": {"alibi_pos_bias": True, "attn_flash": True},
        "T5": {"rel_pos_bias": True},
    }[name]
    d, heads = shape["d_model"], num_heads(shape)
    layers = Decoder(dim=d, depth=shape["num_layers"], heads=heads, attn_dim_head=d // heads, ff_mult=4, **options)
    model = TransformerWrapper(
        num_tokens=VOCABULARY, max_seq_len=shape["length"] + PROMPT, attn_layers=layers, use_abs_pos_emb=False,
        tie_embedding=True,
    )  # fmt: skip
    return model, of_logits(model)


def litgpt(shape: Shape, name: str) -> tuple[nn.Module, Loss]:
    from litgpt import GPT, Config

    model = GPT(
        Config(
            n_layer=shape["num_layers"], n_embd=shape["d_model"], n_head=num_heads(shape), vocab_size=VOCABULARY,
            block_size=shape["length"] + PROMPT, padded_vocab_size=VOCABULARY, rotary_percentage=1.0,
            parallel_residual=False, intermediate_size=4 * shape["d_model"],
        )
    )  # fmt: skip
    model.apply(model._init_weights)
    model.lm_head.weight = model.transformer.wte.weight
    return model, of_logits(model)


def exported(shape: Shape, position: str) -> tuple[nn.Module, Loss]:
    """Ours, to be generated with by CTranslate2."""
    return ours(shape, position)


Build = Callable[[Shape, str], tuple[nn.Module, Loss]]
EVERYBODY: dict[str, tuple[Build, str]] = {
    **{f"ours, {name}": (ours, name) for name in ("none", "rope", "learned", "relative", "alibi", "t5", "kerple")},
    "transformers GPT-NeoX (RoPE)": (hugging_face, "GPT-NeoX"),
    "transformers GPT-2 (learned)": (hugging_face, "GPT-2"),
    "litgpt (RoPE)": (litgpt, "RoPE"),
    **{f"ours, {name}, in CTranslate2": (exported, name) for name in ("rope", "learned", "alibi")},
    **{f"x-transformers ({name})": (x_transformers, name) for name in ("RoPE", "ALiBi", "T5")},
}


def models(shape: Shape, labels: list[str]) -> Iterator[tuple[str, Build, nn.Module, Loss]]:
    """Those with these labels, each with the same random state."""
    for label in labels:
        torch.manual_seed(1)
        build, name = EVERYBODY[label]
        yield label, build, *build(shape, name)


def passes(shape: Shape, labels: list[str], *, training: bool, bf16: bool) -> tuple[dict[str, Timing], int]:
    """Of each label; and the tokens of a pass."""
    data = random_bytes(shape)
    timed = {label: one_pass(model, loss, data, training, bf16) for label, _, model, loss in models(shape, labels)}
    return take_turns(timed, rounds=shape["rounds"], steps_per_round=shape["steps"], device=CPU), data[0].numel()


def random_bytes(shape: Shape) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    inputs, targets = (torch.randint(4, VOCABULARY, (shape["batch"], shape["length"])) for _ in range(2))
    return inputs, targets


def one_pass(
    model: nn.Module, loss: Loss, data: tuple[Tensor, Tensor], training: bool, bf16: bool
) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.train(training).parameters(), lr=1e-4, fused=True)

    def run() -> None:
        with torch.set_grad_enabled(training), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            value = loss(*data)
        if training:
            value.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


# Of torch's operations; what no pattern fits is named `other`: Python, views, memory.
KINDS = {
    "matmuls": r"aten::(addmm|mm|bmm|baddbmm)_?",
    "attention kernel": r"aten::_scaled_dot_product_.*",
    "softmax": r"aten::_softmax.*",
    "activation": r"aten::gelu.*",
    "norms": r"aten::native_layer_norm.*",
    "embedding and loss": r"_ProjectedLoss.*|aten::(index_select|embedding.*|_?log_softmax.*|nll_loss.*|logsumexp)",
    "optimiser": r"aten::_fused_adamw_|Optimizer.*",
    "adding, copying": r"aten::(add|copy|mul|addcmul|div|sum|neg|le|ge|eq|where|masked_fill|fill|zero|cat|index)_?",
}


def shares(shape: Shape, labels: list[str], *, bf16: bool) -> list[dict[str, Any]]:
    """For each label the share of a training step's processor time in each of KINDS."""
    data, rows = random_bytes(shape), []
    for label, _, model, loss in models(shape, labels):
        run = one_pass(model, loss, data, True, bf16)
        run()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(shape["rounds"]):
                run()
        of_kind: dict[str, float] = dict.fromkeys([*KINDS, "other"], 0.0)
        for event in profile.key_averages():
            kind = next((kind for kind, names in KINDS.items() if re.fullmatch(names, event.key)), "other")
            of_kind[kind] += event.self_cpu_time_total
        rows.append({"label": label} | {kind: round(time / sum(of_kind.values()), 4) for kind, time in of_kind.items()})
    return rows


def generation(shape: Shape, labels: list[str]) -> tuple[dict[str, Timing], int]:
    """Of `length` new bytes after each prompt; untrained models never end early."""
    prompts, new = torch.randint(4, VOCABULARY, (shape["batch"], PROMPT)), shape["length"]
    sampling = SamplingConfig(max_new_tokens=new, temperature=0, top_k=None, seed=1, num_samples=1, stop=None)

    def of_transformers(model: Any) -> Callable[[], Any]:
        kept = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        return lambda: model.generate(prompts, **kept)[:, PROMPT:]

    def of_x_transformers(model: Any) -> Callable[[], Any]:
        from x_transformers import AutoregressiveWrapper

        return partial(AutoregressiveWrapper(model).generate, prompts, new, temperature=0.0, cache_kv=True)

    def of_litgpt(model: Any) -> Callable[[], Any]:
        from litgpt.generate.base import generate

        model.set_kv_cache(batch_size=1, max_seq_length=PROMPT + new)
        return lambda: [generate(model, row, PROMPT + new, temperature=0.0, include_prompt=False) for row in prompts]

    def of_ours(model: Any) -> Callable[[], Any]:
        def pieces() -> list[list[int]]:
            found = continuations(Engine(model.model), ByteVocabulary(), prompts.tolist(), sampling, 10**9)
            return [each.pieces for [each] in found]

        return pieces

    def of_ctranslate2(model: Any) -> Callable[[], Any]:
        from ctranslate2 import Generator

        names = [ByteVocabulary().piece(index) for index in range(VOCABULARY)]
        folder = tempfile.mkdtemp()
        write_model(model.model, names, Path(folder), PROMPT + new)
        generator = Generator(folder, compute_type="float32", inter_threads=1, intra_threads=torch.get_num_threads())
        rows = [[names[piece] for piece in row] for row in prompts.tolist()]
        kept = {"max_length": new, "min_length": new, "sampling_topk": 1, "include_prompt_in_result": False}
        return lambda: [result.sequences_ids[0] for result in generator.generate_batch(rows, **kept)]

    generators = {
        ours: of_ours, exported: of_ctranslate2, hugging_face: of_transformers, x_transformers: of_x_transformers,
        litgpt: of_litgpt,
    }  # fmt: skip

    def function(build: Build, model: nn.Module) -> Callable[[], None]:
        generate = generators[build](model)

        def one_pass() -> None:
            assert all(len(row) == new for row in generate())

        return one_pass

    timed = {label: function(build, model.eval()) for label, build, model, _ in models(shape, labels)}
    with torch.inference_mode():
        return take_turns(timed, rounds=shape["rounds"], steps_per_round=1, device=CPU), prompts.shape[0] * new


def main(part: str, arguments: list[str]) -> None:
    settings = dict(argument.split("=", 1) for argument in arguments)
    precision, labels = settings.pop("precision", "32"), settings.pop("only", "")
    shape = DEFAULT | {key: int(value) for key, value in settings.items()}
    # CTranslate2's threads slow everybody else's in the process down: `only=` times it by itself.
    everybody = [label for label, (build, _) in EVERYBODY.items() if build is not exported]
    only = labels.split(";") if labels else everybody
    torch.manual_seed(1)
    timings, tokens = {}, 0
    if part == "generate":
        timings, tokens = generation(shape, only)
    elif part != "shares":
        timings, tokens = passes(shape, only, training=part == "steps", bf16=precision == "bf16")
    flops = step_flops(config_of(shape).model, VOCABULARY, BatchShape(shape["batch"], 0, shape["length"]))
    flops = flops if part == "steps" else flops // 3  # the forward pass alone
    a, b = (torch.randn(2048, 2048, dtype=torch.bfloat16 if precision == "bf16" else torch.float32) for _ in range(2))
    product = take_turns({"product": lambda: torch.mm(a, b)}, rounds=10, steps_per_round=1, device=CPU)["product"]
    rate = 2 * 2048**3 / statistics.median(product.seconds)
    git = [["git", "rev-parse", "--short", "HEAD"], ["git", "status", "--porcelain", "--untracked-files=no", "rpr"]]
    commit, changes = (subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip() for line in git)
    chip = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    rows: list[dict[str, Any]] = shares(shape, only, bf16=precision == "bf16") if part == "shares" else []
    for label, timing in timings.items():
        seconds, baseline = statistics.median(timing.seconds), timings[only[0]].seconds
        ratios = [base / taken for base, taken in zip(baseline, timing.seconds, strict=True)]
        speed = {"label": label, "tokens_per_second": round(tokens / seconds, 1)}
        for name, of in (("ratio", statistics.median), ("ratio_min", min), ("ratio_max", max)):
            speed[name] = round(of(ratios), 4)
        if part != "generate":
            speed |= {"mfu": round(flops / seconds / rate, 3), "peak_megabytes": round(timing.peak_bytes / 1e6)}
        rows.append(speed)
    document = {
        "part": part,
        "shape": shape,
        "precision": precision,
        "chip": chip.partition(":")[2].strip(),
        "threads": torch.get_num_threads(),
        "commit": commit,
        "dirty": bool(changes),
        "versions": {name: version(name) for name in ("torch", "transformers", "x-transformers", "litgpt")},
        "matmul_flops_per_second": round(rate),
        "rows": rows,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
