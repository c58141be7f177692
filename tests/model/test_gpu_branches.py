"""What a training step does on a GPU, computed on a CPU: its operations counted on fake tensors, its graph under
torch.compile, which must be one, and the sizes of tensors of long attention. Compiled steps equal eager ones.
"""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from rpr.compose import composition
from rpr.data.batches import Batch
from rpr.model import attention, devices, layer_positions, rotation
from rpr.model.attention import attention_of
from rpr.model.attention.composition import near_keys
from rpr.model.positions import Site, alibi, fire, pope, selective_rope, t5, transformer_xl
from rpr.training.loss import loss_sum, narrow
from tests.lazy import training_module
from tests.model.scheme_variants import CAUSAL
from tests.shapes import choices, scheme

pytestmark = pytest.mark.timeout(900)
LENGTH = 8192
OTHERS = sorted({*choices()} - {"absolute"})
OF_TORCH = torch.nn.functional.scaled_dot_product_attention
CACHES = (
    attention._bias_of_mask, attention._columns_of_slopes, near_keys, layer_positions.consecutive,
    layer_positions._column, rotation._angles, rotation._of_dimensions, alibi._bias, fire._distances, pope._angles,
    selective_rope._frequencies, t5._bucket_of_rows, transformer_xl._sinusoids,
)  # fmt: skip


class Driver:
    """Names a target: nothing is compiled for it."""

    get_current_target = staticmethod(lambda: pytest.importorskip("triton.backends.compiler").GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)


def scaled_dot_product_attention(q, k, v, attn_mask=None, **how):
    if attn_mask is None or not attn_mask.requires_grad:
        return OF_TORCH(q, k, v, attn_mask, **how)
    mask = attn_mask.expand(len(q), -1, -1, -1)
    return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, **how)[0]


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(devices, "on_gpu", lambda x: True)
    monkeypatch.setattr(devices, "memory", lambda x: 140 * 2**30)
    monkeypatch.setattr(attention, "_kernels_compile_here", lambda: True)
    pytest.importorskip("triton").runtime.driver.set_active(Driver())  # torch reads from a kernel's code what it writes
    monkeypatch.setattr(torch.nn.utils.clip_grad, "_has_foreach_support", lambda tensors, device: True)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", scaled_dot_product_attention)
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda x, p: torch.native_dropout(x, p, True)[0])
    yield
    for cached in CACHES:  # which may hold fake tensors
        cached.cache_clear()
    torch._dynamo.reset()


class Operations(TorchDispatchMode):
    """Counts what is neither a view nor an allocation."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        nothing = func.is_view or func.namespace in ("prim", "profiler") or "empty" in str(func)
        nothing |= func is torch.ops.aten.promote_types.default  # of types, not of tensors
        if not nothing and func is not torch.ops.aten._unsafe_view.default:
            self.count[str(func)] += 1
        return func(*args, **(kwargs or {}))


def settings_of(choice, architecture, *more):
    in_both = architecture == "decoder_only" or choice not in CAUSAL
    positions = [f"position={choice}"] if in_both else ["position=none", f"position.decoder={choice}"]
    return composition.compose_train([*positions, f"model.architecture={architecture}", "hardware=1xgpu", *more])


@pytest.mark.parametrize("choice, layers, most", [
    ("absolute", 1, 156), pytest.param("absolute", 6, 520, marks=pytest.mark.slow),
    *(pytest.param(one, 6, 820, marks=pytest.mark.slow) for one in OTHERS),
])  # fmt: skip
def test_operations_of_a_step_of_base(choice, layers, most, on_gpu):
    """Forward, loss, backward, clipping and Adam, of 32 sentences of 512, in bfloat16; a Triton operation is one."""
    config = settings_of(choice, "encoder_decoder", "model=base", f"model.num_layers={layers}")
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = training_module.TranslationModule(config, 32768)
        module._trainer = SimpleNamespace(accumulate_grad_batches=1, world_size=1)
        optimizer = module.configure_optimizers()["optimizer"]
        pieces = torch.zeros(32, 512, dtype=torch.int64)
        batch = Batch(pieces, pieces, pieces, *[pieces.numel()] * 3, source_padded=False)

        def step():
            module.training_step(batch, 0).backward()
            module.on_before_optimizer_step(optimizer)
            optimizer.step()
            optimizer.zero_grad()

        step()
        with Operations() as operations:
            step()
    assert operations.count.total() <= most, operations.count


def graphs_of(function, *args, **how):
    """The graphs, forward and backward, of one call as torch.compile traces them; none is run."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    graphs = []

    def instead(graph, _):
        graphs.append(graph)
        (outputs,) = graph.graph.find_nodes(op="output")[0].args
        values = [node.meta["val"] if isinstance(node, torch.fx.Node) else node for node in outputs]
        return make_boxed_func(
            lambda *_: [torch.zeros(x.shape, dtype=x.dtype) if isinstance(x, torch.Tensor) else x for x in values]
        )

    backend = aot_autograd(fw_compiler=instead, bw_compiler=instead)
    torch.compile(function, fullgraph=True, dynamic=False, backend=backend)(*args, **how).sum().backward()
    return graphs


def small_step(config, *, padded, vocabulary=50):
    """A model and the arguments of `loss_sum`, of three pairs or windows."""
    model = training_module.TranslationModule(config, vocabulary).model.train()
    draw = torch.Generator().manual_seed(1)
    source, target = (torch.randint(4, vocabulary, (3, 20), generator=draw) for _ in range(2))
    if padded:
        source[0, 15:], target[1, 17:] = 0, 0
    how = {"real": None if padded else target.numel(), "smoothing": 0.1, "padded": padded}
    return model, (source, target, target), how


@pytest.mark.parametrize("architecture, padded, gpu", [
    ("encoder_decoder", True, True), ("decoder_only", False, True), ("encoder_decoder", False, True),
    ("decoder_only", True, True), ("encoder_decoder", True, False), ("decoder_only", False, False),
])  # fmt: skip
@pytest.mark.parametrize("choice", [pytest.param(choice, marks=pytest.mark.slow) for choice in sorted(choices())])
def test_a_step_is_one_graph(choice, architecture, padded, gpu, on_gpu, monkeypatch):
    monkeypatch.setattr(devices, "on_gpu", lambda x: gpu)
    layers = {"rope_local": 4, "relative_local": 4, "rope_none": 4}.get(choice, 2)
    small = ["model.d_model=16", "model.num_heads=2", "model.d_ff=16", f"model.num_layers={layers}"]
    model, pieces, how = small_step(settings_of(choice, architecture, *small), padded=padded)
    assert len(graphs_of(loss_sum, model, *pieces, bfloat16=gpu, **how)) == 2


@pytest.mark.slow
def test_a_small_step_with_the_fused_kernel_is_one_graph(on_gpu):
    config = settings_of("relative", "decoder_only", "model.d_model=16", "model.num_heads=2", "model.num_layers=1")
    model, pieces, how = small_step(config, padded=False)
    forward, backward = graphs_of(loss_sum, model, *pieces, bfloat16=True, **how)
    kernels = [sum("triton_kernel" in str(node.target) for node in graph.graph.nodes) for graph in (forward, backward)]
    assert kernels == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("choice", ["alibi", "clipped_scalars", "kerple", "t5"])
def test_long_attention_with_a_bias_has_no_tensor_of_all_pairs(choice, causal, on_gpu):
    positions = layer_positions.LayerPositions(scheme(choice), Site(1, 2, 32, causal))
    x = torch.zeros(1, LENGTH, 32, dtype=torch.bfloat16)

    def z_of(q, k, v):
        return attention_of(positions.inputs(x, q, k, v)._replace(causal=causal))

    qkv = (torch.zeros(1, 2, LENGTH, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    for graph in graphs_of(z_of, *qkv):
        values = [node.meta.get("val") for node in graph.graph.nodes]
        assert max(x.numel() for x in values if isinstance(x, torch.Tensor)) < LENGTH**2 / 4


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["absolute", "relative", "rope", "t5"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_steps_equal_eager_ones(backend, choice):
    small = ["model.d_model=64", "model.num_heads=2", "model.d_ff=64", "model.num_layers=1", "model.dropout=0"]
    model, pieces, how = small_step(settings_of(choice, "encoder_decoder", *small), padded=True)
    compiled = torch.compile(loss_sum, fullgraph=True, dynamic=False, backend=backend)
    found = []
    for function in (loss_sum, compiled):
        loss = function(model, *pieces, bfloat16=False, **how)
        found.append([loss.detach(), *torch.autograd.grad(loss, [*model.parameters()])])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


@pytest.mark.slow
def test_losses_in_bfloat16_are_those_in_float32_up_to_rounding():
    """Of two seeds, after eight steps."""
    for seed in range(2):
        losses = []
        for bfloat16 in (False, True):
            small = ["model.d_model=32", "model.num_heads=2", "model.d_ff=64", "model.num_layers=1", f"seed={seed}"]
            model, pieces, how = small_step(settings_of("relative", "encoder_decoder", *small), padded=True)
            optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
            torch.manual_seed(seed)
            for _ in range(8):
                optimizer.zero_grad()
                loss = loss_sum(model, *pieces, bfloat16=bfloat16, **how)
                loss.backward()
                optimizer.step()
            assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
            losses.append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert {weight.dtype for weight in narrow(model).values()} == {torch.bfloat16}
