"""`fused_attention` and its kernels in Triton's interpreter on a CPU against `composed`; compiling them, which needs
no GPU. The compiled kernels on a GPU: tests/gpu/test_triton.py.
"""

import importlib
import itertools
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from rpr.model.attention.inputs import AttentionInputs
from tests.lazy import triton_attention
from tests.model.attention_cases import Case, assert_same, composed, results
from tests.model.test_blockwise_attention import Calls

ROOT = Path(__file__).parents[2]
SMALL = ((16, 16), (16, 16), (16, 16))


@pytest.fixture(scope="class")
def interpreter():
    """Triton and the kernels anew: what is imported first decides whether kernels are interpreted."""

    def imported():
        names = [*sys.modules]
        return [name for name in names if re.match(r"(triton|rpr\.model\.kernels)(\.(?!_C)|$)", name)]

    compiled = {name: sys.modules.pop(name) for name in imported()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        interpreter = importlib.import_module("triton.runtime.interpreter")
        # Half of the time: checks for overflows, and patches of Triton's language at each call of a function.
        options = interpreter.interpreter_builder.options
        patch.setattr(interpreter.interpreter_builder, "options", replace(options, sanitize_overflow=False))
        patch_language, of_module = interpreter._patch_lang, {}

        def patched(fn):
            of_module[fn.__module__] = fn.__module__ in of_module or patch_language(fn)
            return SimpleNamespace(restore=lambda: None)

        patch.setattr(interpreter, "_patch_lang", patched)
        yield
    for name in imported():
        del sys.modules[name]
    sys.modules.update((name, module) for name, module in compiled.items() if name.startswith("triton"))


# In the interpreter


def fused(q, k, v, *, tiles=SMALL, **options):
    """Called as `attend` is, with key and value tables alone."""
    return triton_attention.fused_attention(AttentionInputs(q, k, v, **options), triton_attention.Tiles(*tiles))


def assert_equals_reference(case, *, dtype=torch.float64, tiles=SMALL, tolerance=1e-11, **more):
    """Forward and all gradients. A query without a visible key has output 0 and no gradient, unlike in `composed`."""
    inputs, options = case.inputs(dtype)
    options |= more
    visible = case.has_visible_key(options)
    weight = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    expected = results(lambda *qkv, **others: composed(*qkv, **others) * visible, inputs, weight, **options)
    assert_same(results(partial(fused, tiles=tiles), inputs, weight, **options), expected, "fused", tolerance)


@pytest.mark.usefixtures("interpreter")
class TestInterpreted:
    @pytest.mark.parametrize("case", [
        Case(5, 34, 20, keys=3, values=3, batch=1, heads=1),  # whole tiles of far keys on both sides
        Case(20, 20, keys=3, values=None, causal=True, mask="K", batch=1, heads=1),
        Case(5, 20, keys=None, values=None, mask="BK", heads=1),
        Case(5, 20, keys=1, values=0, batch=1, heads=1),
        Case(3, 20, 15, keys=40, values=16, causal=True, mask="BQK", per_head=(False, False), heads=1),
        Case(1, 7, 6, keys=2, values=4, causal=True, batch=1, heads=1),
        Case(5, 20, 22, keys=5, mask="HQ", batch=1, per_head=(True, True)),
        Case(2, 1, 9, values=4, batch=1, heads=1),
        Case(20, 20, keys=None, values=None, bias=40, causal=True, batch=1, heads=1),
        Case(5, 20, 3, keys=2, values=1, bias=5, mask="K", heads=1),
        Case(5, 20, 15, keys=40, values=None, bias=7, queries=5, causal=True, batch=1),
        Case(34, 34, keys=2, values=3, bias=9, window=17, causal=True, batch=1, heads=1),
        Case(20, 20, 3, keys=4, values=None, bias=30, window=5, mask="QK", batch=1, heads=1),
    ], ids=str)  # fmt: skip
    def test_matches_reference(self, case):
        assert_equals_reference(replace(case, width=8))

    def test_byte_mask_matches_reference(self):  # in float64, as above, masks are converted to int32
        assert_equals_reference(Case(7, 9, values=3, mask="QK", batch=1, heads=1), dtype=torch.float32, tolerance=1e-4)

    def test_fully_masked_queries_have_output_0_and_no_gradient(self):
        mask = torch.ones(1, 2, 4, 20, dtype=torch.bool)
        mask[0, 1] = False
        mask[0, 0, 3] = False
        mask[0, 0, :, :16] = False  # the first tile
        assert_equals_reference(Case(4, 20, 16, values=3, causal=True, batch=1), mask=mask)

    def test_causal_attention_does_not_read_table_rows_of_future_keys(self):
        inputs, options = Case(6, 6, keys=3, values=2, causal=True, batch=1, heads=1).inputs()
        weight = torch.ones_like(inputs[0])
        clean = results(fused, inputs, weight, **options)
        for table in inputs[3:5]:
            table[..., table.shape[-2] // 2 + 1 :, :] = torch.nan
        assert all(map(torch.equal, results(fused, inputs, weight, **options), clean))
        assert not any(of_table[..., of_table.shape[-2] // 2 + 1 :, :].any() for of_table in clean[4:])

    def test_other_tiles_and_head_widths_match_reference(self):
        tiles = ((16, 64), (32, 16), (16, 32))
        assert_equals_reference(Case(20, 40, 5, values=5, width=20, batch=1, heads=1), tiles=tiles)

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(40))
    def test_random_shapes_match_reference(self, seed):
        random = torch.Generator().manual_seed(seed)

        def choose(*choices):
            return choices[int(torch.randint(len(choices), (), generator=random))]

        case = Case(
            choose(1, 7, 16, 31, 50, 130), choose(1, 5, 32, 33, 60, 200), choose(0, 1, 40),
            keys=choose(None, 0, 1, 7, 70), values=choose(None, 0, 2, 15, 16), causal=choose(True, False),
            mask=choose("", "K", "QK", "BK"), per_head=(choose(True, False),) * 2, batch=choose(1, 2), width=8,
            seed=seed, bias=choose(None, 0, 3, 90), window=choose(None, None, 1, 20),
        )  # fmt: skip
        assert_equals_reference(case, tiles=[(choose(16, 32), choose(16, 32)) for _ in range(3)])

    def test_strided_inputs_match_reference_and_heads_join_without_a_copy(self):
        assert_equals_reference(Case(6, 6, values=3, batch=1, strided=True))
        inputs, _ = Case(6, 6, values=3, batch=1).inputs()
        ones = torch.ones(1, 1, 1, 1, dtype=torch.float64).expand_as(inputs[0])
        z, *gradients = results(fused, [*(x.mT.contiguous().mT for x in inputs[:3]), *inputs[3:]], ones)
        assert z.transpose(1, 2).flatten(-2).data_ptr() == z.data_ptr()
        assert_same([z, *gradients], results(composed, inputs, ones), "strided", 1e-11)

    def test_results_do_not_change_if_hooks_make_saved_tensors_contiguous(self):
        inputs, _ = Case(6, 6, batch=1).inputs()
        mask = torch.arange(6) < 4
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.contiguous(), lambda x: x):
            found = results(fused, inputs, inputs[0], mask=mask)
        assert_same(found, results(composed, inputs, inputs[0], mask=mask), "hooks", 1e-11)

    def test_allocates_no_tensor_of_all_query_key_pairs(self):
        inputs, _ = Case(16, 16, keys=4, values=4, batch=1, heads=1, width=8).inputs()
        with Calls() as calls:
            results(fused, inputs, inputs[0])
        assert calls.most_bytes == 16 * 9 * 8  # a side table in float64

    def test_autocast_and_frozen_tables_do_not_change_results(self):
        (q, k, v, *tables), _ = Case(9, 9, values=3, batch=1, heads=1).inputs(torch.float32)

        def with_frozen_tables(q, k, v, **others):
            return fused(q, k, v, key_table=tables[0], value_table=tables[1])

        plain = results(with_frozen_tables, [q, k, v], q)
        with torch.autocast("cpu", torch.bfloat16):
            cast = results(with_frozen_tables, [q, k, v], q)
        assert all(map(torch.equal, plain, cast))

    @pytest.mark.parametrize("dtype, largest_error", [
        pytest.param(torch.float32, 2e-6, marks=pytest.mark.slow), (torch.float16, 2e-3)
    ])  # fmt: skip
    def test_rounding_error_forward_and_in_all_gradients(self, dtype, largest_error):
        inputs, _ = Case(100, 100, keys=16, values=16, batch=1, heads=1, width=32).inputs()
        large = ((64, 64), (64, 64), (64, 64))  # fewer tiles to interpret
        exact = results(composed, inputs, inputs[0])
        narrow = [None if x is None else x.to(dtype) for x in inputs]
        for actual, expected in zip(results(partial(fused, tiles=large), narrow, narrow[0]), exact, strict=True):
            assert actual.dtype == dtype
            assert (actual.double() - expected).norm() < largest_error * expected.norm()

    def test_rounding_of_the_output_does_not_add_up_in_the_rows_of_far_keys(self):
        inputs, _ = Case(100, 100, keys=16, values=16, batch=1, heads=1, width=32).inputs()
        inputs[2] = (inputs[2] + 8).half().double()
        exact = results(composed, inputs, inputs[0])
        narrow = [None if x is None else x.half() for x in inputs]
        actual = results(partial(fused, tiles=((64, 64), (64, 64), (64, 64))), narrow, narrow[0])
        for index in (2, 4):  # of k and of the key table; 1.5e-3 and 2.7e-3 from the rounded output alone
            assert (actual[index].double() - exact[index]).norm() < 1e-3 * exact[index].norm()


# Compiling for a GPU, without one


def compile_cases(capability):
    """Compile what fused_attention would launch for each case.

    The driver only names the target and the launch only compiles. Prints a line for each kernel.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    class Driver:
        get_current_target = staticmethod(lambda: GPUTarget("cuda", capability, 32))
        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device: 0)

    def compile_only(self, grid):
        def launch(*args, **kwargs):
            compiled = self.run(*args, grid=grid, warmup=True, **kwargs)
            assert len(compiled.asm["cubin"]) > 1000
            assert not re.search(r"\b(atom|red)\.", compiled.asm["ptx"])  # nothing is added atomically
            tf32 = "tf32" in compiled.asm["ptx"]
            assert tf32 == (dtype == torch.float32 and precision == "high"), (dtype, precision)
            # An A100 has 163 KiB for a program, an H100 227.
            assert compiled.metadata.shared <= (163 if capability < 90 else 227) * 1024
            print(self.fn.__name__, *case, "shared memory", compiled.metadata.shared)

        return launch

    triton.runtime.driver.set_active(Driver())
    JITFunction.__getitem__ = compile_only
    for case in ALL_CASES:
        dtype, precision, width, on_keys, on_values, causal, masked, *biased = case
        torch.set_float32_matmul_precision(precision)
        q, k, v = (x.transpose(1, 2).requires_grad_() for x in torch.randn(2, 100, 3, 4, width).to(dtype).unbind(2))
        table = torch.randn(4, 33, width, requires_grad=True)
        mask = {"no_mask": None, "by_key": torch.ones(2, 1, 1, 100), "by_query": torch.ones(100, 100)}[masked]
        tables = {"key_table": table if on_keys else None, "value_table": table if on_values else None}
        mask = None if mask is None else mask.bool()
        if biased:
            tables |= {"bias_table": torch.randn(4, 33, requires_grad=True), "window": 20}
        triton_attention.fused_attention(AttentionInputs(q, k, v, **tables, causal=causal, mask=mask)).sum().backward()


HALF_OR_SINGLE, ON, EACH = (torch.bfloat16, torch.float32), (True,), (True, False)
BIASED = [*itertools.product(HALF_OR_SINGLE, ("high",), (64, 128), EACH, (False,), EACH, ("no_mask",), ("bias",))]
ALL_CASES = [  # dtype, precision, width, keys, values, causal, mask; with a bias in a window, which has a fourth kernel
    *BIASED,
    *itertools.product((*HALF_OR_SINGLE, torch.float16), ("highest",), (64,), EACH, EACH, EACH, ("no_mask",)),
    *itertools.product(HALF_OR_SINGLE, ("high",), (64,), ON, ON, EACH, ("by_key", "by_query")),
    *itertools.product(HALF_OR_SINGLE, ("highest", "high"), (8, 80, 128, 256), ON, ON, (False,), ("by_key",)),
    *itertools.product((torch.float64,), ("highest",), (64, 128, 256), ON, ON, (False,), ("by_query",)),
    *itertools.product((torch.float64,), ("high",), (64,), EACH, (False,), ON, ("no_mask", "by_key")),
]


@pytest.mark.parametrize("capability", ["80", "90"], ids=["a100", "h100"])
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_variants_of_the_kernels_compile(tmp_path, capability):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, __file__, capability]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3500)
    assert done.returncode == 0, done.stderr[-10_000:]
    assert len(done.stdout.splitlines()) == 3 * len(ALL_CASES) + len(BIASED)


if __name__ == "__main__":  # started by the test above
    compile_cases(int(sys.argv[1]))
