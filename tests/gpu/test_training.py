"""On a CUDA device: training steps of every position scheme do not synchronise with the CPU; a resumed run ends with
the same bits as an uninterrupted one; decoding matches the CPU.
"""

import copy
import shutil
from types import SimpleNamespace

import pytest
import torch

try:
    from rpr.compose import composition
    from rpr.data.batches import Batch
    from rpr.data.cache import prepare
    from rpr.data.vocabulary import BOS, EOS, PAD
    from rpr.model.beam_search import Search, beam_search
    from rpr.paths import data_dir
    from rpr.runs.loading import load_checkpoint
    from rpr.training import fit
    from rpr.training.module import TranslationModule
except ModuleNotFoundError as missing:
    if str(missing.name).startswith("rpr"):
        raise
    pytest.skip(f"{missing.name} is not installed", allow_module_level=True)

pytestmark = pytest.mark.gpu

VOCABULARY = 200
SMALL = ("model.num_layers=4", "model.d_model=128", "model.num_heads=4", "model.d_ff=256", "logger=none")
CHOICES = sorted(path.stem for path in (data_dir("conf") / "position").glob("[!_]*.yaml"))
CAUSAL = {"cope", "fire", "fox", "selective_rope", "xpos"}  # in a decoder alone
CASES = [(choice, architecture) for architecture in ("encoder_decoder", "decoder_only") for choice in CHOICES]


def settings_of(choice, architecture):
    mixed = architecture == "encoder_decoder" and choice in CAUSAL
    positions = ["position=none", f"position.decoder={choice}"] if mixed else [f"position={choice}"]
    return [*positions, f"model.architecture={architecture}", *SMALL]


def hardware_of(device):
    return "hardware=1xgpu" if device.type == "cuda" else "hardware=cpu"


def batch_on(device, sentences=16, longest=48):
    """Padded sentences of many lengths."""
    random = torch.Generator().manual_seed(1)
    source, target = (torch.randint(4, VOCABULARY, (sentences, longest), generator=random) for _ in range(2))
    for rows in (source, target):
        for number, row in enumerate(rows):
            end = longest - 2 * number
            row[end - 1], row[end:] = EOS, PAD
    target_input = torch.cat([torch.full((sentences, 1), BOS), target[:, :-1]], dim=1)
    sizes = [int((x != PAD).sum()) for x in (source, target)]
    return Batch(*(x.to(device) for x in (source, target_input, target)), sizes[1], *sizes)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("choice, architecture", CASES)
def test_training_step_does_not_synchronise_with_the_cpu(choice, architecture, precision, device):
    rounded = "hardware.precision=bf16" if precision == torch.bfloat16 else "hardware.precision=32"
    config = composition.compose_train([hardware_of(device), rounded, *settings_of(choice, architecture)])
    module = TranslationModule(config, VOCABULARY).to(device)
    module._trainer = SimpleNamespace(accumulate_grad_batches=1, world_size=1)
    optimizer = module.configure_optimizers()["optimizer"]
    batch = batch_on(device)

    def step():
        loss = module.training_step(batch, 0)
        loss.backward()
        module.on_before_optimizer_step(optimizer)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    first = step()
    step()
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        losses = [step() for _ in range(5)]
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    assert all(loss.isfinite() for loss in losses) and losses[-1] != first


@pytest.mark.parametrize("choice, architecture, compiled", [
    *((choice, "encoder_decoder", False) for choice in ("relative", "absolute", "t5")), ("fox", "decoder_only", False),
    ("relative", "decoder_only", True),
])  # fmt: skip
def test_resumed_run_equals_uninterrupted_run(choice, architecture, compiled, device, tmp_path):
    small = ["data.synthetic.num_train=2000", "data.synthetic.num_validation=24", "data.vocabulary_size=300"]
    if compiled:  # windows of text have one shape
        (tmp_path / "text").mkdir()
        for split in ("train", "validation", "test"):
            (tmp_path / "text" / f"{split}.txt").write_text("A man sleeps in the sun, and a dog in the house. " * 40)
        small = ["data=text", f"data.path={tmp_path / 'text'}", "data.context_length=32", "model.num_layers=1"]
    config = composition.compose_train(
        [
            hardware_of(device), f"hardware.compile={compiled}", *settings_of(choice, architecture), *small,
            f"data.cache_dir={tmp_path / 'cache'}",
            "optim.max_steps=20", "optim.checkpoint_every_n_steps=10", "optim.validate_every_n_steps=10",
            "optim.max_tokens_per_microbatch=512", "evaluation.validation_sentences=0",
        ]
    )  # fmt: skip
    data = prepare(config.data)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # for torch's kernels of plain attention
    try:
        fit.fit(config, data, tmp_path / "whole")
        (tmp_path / "cut" / "checkpoints").mkdir(parents=True)
        shutil.copy(tmp_path / "whole" / "checkpoints" / "step00000010.ckpt", tmp_path / "cut" / "checkpoints")
        fit.fit(config, data, tmp_path / "cut")
    finally:
        torch.use_deterministic_algorithms(before)
    whole, cut = (load_checkpoint(tmp_path / name / "checkpoints" / "step00000020.ckpt") for name in ("whole", "cut"))
    for part in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(cut[part], whole[part], rtol=0, atol=0)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("choice, architecture", CASES)
def test_decoding_matches_the_cpu(choice, architecture, beam_size, device):
    config = composition.compose_train(settings_of(choice, architecture))
    model = TranslationModule(config, VOCABULARY).model.double().eval()
    source = batch_on(torch.device("cpu"), sentences=8, longest=20).source_BS
    search = Search(beam_size, 0.6, 5, 0, n_best=beam_size, min_length=6)
    expected = beam_search(model, source, search)
    exact = beam_search(copy.deepcopy(model).to(device), source.to(device), search)
    for found, wanted in zip(exact, expected, strict=True):
        assert [one.pieces for one in found] == [one.pieces for one in wanted]
        assert [one.score for one in found] == pytest.approx([one.score for one in wanted], abs=1e-9)
    rounded = beam_search(copy.deepcopy(model).float().to(device), source.to(device), search)
    for found, wanted in zip(rounded, expected, strict=True):  # ties may be resolved differently
        assert found[0].score == pytest.approx(wanted[0].score, abs=1e-3)
