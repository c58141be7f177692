"""`fused_attention` and its kernels in Triton's interpreter on a CPU against `reference`; compiling them, which needs
no GPU. The compiled kernels on a GPU: tests/gpu/test_triton.py.

The interpreter must be chosen before triton is imported, which Lightning does too, so these tests run in a process of
their own. To run them directly: TRITON_INTERPRET=1 python -m pytest tests/model/test_triton_attention.py
"""

import itertools
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from rpr.model.triton_attention import Tiles, fused_attention
from tests.model.attention_cases import reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ROOT = Path(__file__).parents[2]
SMALL = Tiles((16, 16), (16, 16), (16, 16))


def run_python(arguments, timeout_seconds, **environment):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | environment
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_seconds
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-10_000:]
    return done.stdout


def interpreted_tests(marked, timeout_seconds, coverage_environment):
    arguments = ["-m", "pytest", "--noconftest", "-p", "no:cacheprovider", "-m", marked, __file__]
    environment = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": "", "CUDA_VISIBLE_DEVICES": ""}
    return run_python(arguments, timeout_seconds, **environment, **coverage_environment)


@pytest.mark.skipif(INTERPRETED, reason="already in the interpreter")
def test_kernels_in_the_interpreter(coverage_environment):
    assert " passed" in interpreted_tests("not slow", 280, coverage_environment)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(INTERPRETED, reason="already in the interpreter")
def test_kernels_in_the_interpreter_with_random_shapes(coverage_environment):
    assert " passed" in interpreted_tests("slow", 1700, coverage_environment)


# In the interpreter


def make_inputs(num_queries, num_keys, key_clip, value_clip, *, batch=1, heads=1, per_head=True, width=8):
    """q, k, v [B, H, ., D] and the tables in float64, all with gradients; a clip distance of None is no table."""
    torch.manual_seed(1000 * num_queries + num_keys)

    def normal(*shape):
        return torch.randn(shape, dtype=torch.float64).requires_grad_()

    q, k, v = (normal(batch, heads, n, width) for n in (num_queries, num_keys, num_keys))
    groups = [heads] if per_head else []
    clips = {"key_table": key_clip, "value_table": value_clip}
    tables = {name: None if clip is None else normal(*groups, 2 * clip + 1, width) for name, clip in clips.items()}
    return q, k, v, tables


def present(*tensors):
    return [x for x in tensors if x is not None]


def assert_equals_reference(q, k, v, tables, *, mask=None, causal=False, first_query=0, tiles=SMALL, tolerance=1e-11):
    """Forward and all gradients. A query without a visible key has output 0 and no gradient, unlike in `reference`."""
    inputs = present(q, k, v, *tables.values())
    options = {"mask": mask, "causal": causal, "first_query": first_query}
    visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool) if mask is None else mask
    if causal:
        visible = visible & (torch.arange(k.shape[2]) <= first_query + torch.arange(q.shape[2])[:, None])
    expected = reference(q, k, v, **options, **tables) * visible.any(-1, keepdim=True)
    actual = fused_attention(q, k, v, tiles=tiles, **options, **tables)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    dz = torch.randn_like(expected)
    gradients = torch.autograd.grad(actual, inputs, dz)
    for got, wanted in zip(gradients, torch.autograd.grad(expected, inputs, dz), strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def relative_error(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm()).item()


class TestInterpreted:
    __test__ = INTERPRETED

    @pytest.mark.parametrize(
        "num_queries, first_query, num_keys, key_clip, value_clip, causal, mask",
        [
            # Tiles are 16 x 16. Here each query has tiles to the left, near and to the right.
            (16, 31, 66, 3, 3, False, None),
            (20, 0, 20, 3, None, True, (20,)),
            pytest.param(20, 0, 20, None, 3, True, None, marks=pytest.mark.slow),
            (5, 0, 20, None, None, False, (2, 1, 1, 20)),
            (20, 0, 20, 1, 0, False, None),
            pytest.param(20, 0, 20, 0, 2, True, None, marks=pytest.mark.slow),
            (3, 15, 20, 40, 16, True, (2, 1, 3, 20)),
            (1, 6, 7, 2, 4, True, None),
            pytest.param(20, 17, 37, 2, 4, True, None, marks=pytest.mark.slow),
            (20, 22, 20, 5, 1, False, (1, 2, 20, 1)),
            (2, 9, 1, 2, 4, False, None),
        ],
        ids=str,
    )
    def test_matches_reference(self, num_queries, first_query, num_keys, key_clip, value_clip, causal, mask):
        sizes = {"batch": 1, "heads": 1} if mask is None else {"batch": 2 if mask[0] == 2 else 1, "heads": 2}
        inputs = make_inputs(num_queries, num_keys, key_clip, value_clip, **sizes, per_head=not causal)
        if mask is not None:
            mask = torch.rand(mask, generator=torch.Generator().manual_seed(len(mask))) < 0.5
        assert_equals_reference(*inputs, mask=mask, first_query=first_query, causal=causal)

    def test_byte_mask_matches_reference(self):
        # In float64, as above, masks are converted to int32.
        q, k, v, tables = make_inputs(7, 9, 2, 3)
        q, k, v = (x.detach().float().requires_grad_() for x in (q, k, v))
        tables = {name: table.detach().float().requires_grad_() for name, table in tables.items()}
        mask = torch.rand((7, 9), generator=torch.Generator().manual_seed(1)) < 0.5
        assert_equals_reference(q, k, v, tables, mask=mask, tolerance=1e-4)

    def test_fully_masked_queries_have_output_0_and_no_gradient(self):
        inputs = make_inputs(4, 20, 2, 3, heads=2)
        mask = torch.ones(1, 2, 4, 20, dtype=torch.bool)
        mask[0, 1] = False
        mask[0, 0, 3] = False
        mask[0, 0, :, :16] = False  # the first tile
        assert_equals_reference(*inputs, mask=mask, causal=True, first_query=16)

    def test_causal_attention_does_not_read_table_rows_of_future_keys(self):
        q, k, v, tables = make_inputs(6, 6, 3, 2)
        clean = fused_attention(q, k, v, causal=True, tiles=SMALL, **tables)
        with torch.no_grad():
            for table in tables.values():
                table[:, table.shape[1] // 2 + 1 :] = torch.nan
        out = fused_attention(q, k, v, causal=True, tiles=SMALL, **tables)
        assert torch.equal(out, clean)
        out.sum().backward()
        for table in tables.values():
            assert table.grad.isfinite().all() and not table.grad[:, table.shape[1] // 2 + 1 :].any()

    def test_other_tiles_and_head_widths_match_reference(self):
        inputs = make_inputs(20, 70, 2, 5, width=20)
        assert_equals_reference(*inputs, tiles=Tiles((16, 64), (32, 16), (16, 32)), first_query=5)

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(40))
    def test_random_shapes_match_reference(self, seed):
        random = torch.Generator().manual_seed(seed)

        def choose(*choices):
            return choices[int(torch.randint(len(choices), (), generator=random))]

        num_queries, num_keys = choose(1, 7, 16, 31, 50, 130), choose(1, 5, 32, 33, 60, 200)
        clips = choose(None, 0, 1, 7, 70), choose(None, 0, 2, 15, 16)
        inputs = make_inputs(num_queries, num_keys, *clips, batch=choose(1, 2), heads=2, per_head=choose(True, False))
        shape = choose(None, (num_keys,), (num_queries, num_keys), (2, 1, num_keys))
        mask = None if shape is None else torch.rand(shape, generator=random) < 0.7
        sizes = [(choose(16, 32), choose(16, 32)) for _ in range(3)]
        assert_equals_reference(
            *inputs, mask=mask, causal=choose(True, False), first_query=choose(0, 1, 40), tiles=Tiles(*sizes)
        )

    def test_strided_inputs_match_reference_and_heads_join_without_a_copy(self):
        _, _, _, tables = make_inputs(6, 6, 2, 3, heads=2)
        qkv = torch.randn(1, 6, 3, 2, 8, dtype=torch.float64, requires_grad=True)
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
        out = fused_attention(q, k, v, tiles=SMALL, **tables)
        assert out.transpose(1, 2).flatten(-2).data_ptr() == out.data_ptr()
        # The gradient of sum() has strides of 0; the last axis of `turned` is not contiguous.
        (expected,) = torch.autograd.grad(reference(q, k, v, **tables).sum(), qkv)
        torch.testing.assert_close(torch.autograd.grad(out.sum(), qkv)[0], expected, rtol=1e-11, atol=1e-11)
        turned = [x.detach().transpose(-2, -1).contiguous().transpose(-2, -1).requires_grad_() for x in (q, k, v)]
        assert_equals_reference(*turned, tables)

    def test_results_do_not_change_if_hooks_make_saved_tensors_contiguous(self):
        # As torch.autograd.graph.save_on_cpu(pin_memory=True) does: z is not contiguous, the mask has strides of 0.
        q, k, v, tables = make_inputs(6, 6, 2, 1, heads=2)
        mask = torch.arange(6) < 4
        runs = []
        for pack in (lambda x: x, lambda x: x.clone(memory_format=torch.contiguous_format)):
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                out = fused_attention(q, k, v, mask=mask, tiles=SMALL, **tables)
            runs.append([out, *torch.autograd.grad(out.square().sum(), present(q, k, v, *tables.values()))])
        assert all(torch.equal(one, two) for one, two in zip(*runs, strict=True))

    def test_allocates_no_tensor_of_all_query_key_pairs(self):
        length = 20
        q, k, v, tables = make_inputs(length, length, 4, 4)

        class Largest(TorchDispatchMode):
            num_bytes = 0

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                out = func(*args, **(kwargs or {}))
                if isinstance(out, torch.Tensor):
                    self.num_bytes = max(self.num_bytes, out.untyped_storage().nbytes())
                return out

        with Largest() as largest:
            fused_attention(q, k, v, **tables).square().sum().backward()
        assert v.grad is not None
        assert largest.num_bytes == length * 9 * 8  # a side table in float64

    def test_autocast_and_frozen_tables_do_not_change_results(self):
        q, k, v, tables = make_inputs(9, 9, 2, 3)
        tables = {name: table.detach().float() for name, table in tables.items()}
        q, k, v = (x.detach().float().requires_grad_() for x in (q, k, v))
        plain = fused_attention(q, k, v, tiles=SMALL, **tables)
        with torch.autocast("cpu", torch.bfloat16):
            cast = fused_attention(q, k, v, tiles=SMALL, **tables)
            gradients = torch.autograd.grad(cast.sum(), (q, k, v))
        assert torch.equal(plain, cast)
        for one, two in zip(gradients, torch.autograd.grad(plain.sum(), (q, k, v)), strict=True):
            assert torch.equal(one, two)

    def test_empty_keys_or_queries_give_zeros(self):
        q, k, v, tables = make_inputs(3, 0, 2, 2)
        out = fused_attention(q, k, v, **tables)
        assert out.shape == q.shape and not out.any()
        q, k, v, tables = make_inputs(0, 3, 2, 2)
        fused_attention(q, k, v, **tables).sum().backward()
        assert not v.grad.any()

    @pytest.mark.parametrize(
        "dtype, length, largest_error",
        [pytest.param(torch.float32, 100, 2e-6, marks=pytest.mark.slow), (torch.float16, 100, 2e-3)],
    )
    def test_rounding_error_forward_and_in_all_gradients(self, dtype, length, largest_error):
        # The tables' gradients are sums over all queries in float32.
        exact = make_inputs(length, length, 16, 16, width=32)
        tensors = [x.detach().to(dtype) for x in (*exact[:3], *exact[3].values())]
        outs, gradients = [], []
        dz = torch.randn_like(tensors[0])
        large = Tiles((64, 64), (64, 64), (64, 64))  # fewer tiles to interpret
        for precision, attention in ((torch.float64, reference), (dtype, partial(fused_attention, tiles=large))):
            inputs = [x.to(precision).requires_grad_() for x in tensors]
            q, k, v, key_table, value_table = inputs
            outs.append(attention(q, k, v, key_table=key_table, value_table=value_table))
            gradients.append(torch.autograd.grad(outs[-1], inputs, dz.to(precision)))
        assert outs[1].dtype == dtype
        errors = [relative_error(outs[1], outs[0])]
        errors += [relative_error(got, wanted) for wanted, got in zip(*gradients, strict=True)]
        assert max(errors) < largest_error


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
        dtype, precision, width, on_keys, on_values, causal, masked = case
        torch.set_float32_matmul_precision(precision)
        q, k, v = (x.transpose(1, 2).requires_grad_() for x in torch.randn(2, 100, 3, 4, width).to(dtype).unbind(2))
        table = torch.randn(4, 33, width, requires_grad=True)
        mask = {"no_mask": None, "by_key": torch.ones(2, 1, 1, 100), "by_query": torch.ones(100, 100)}[masked]
        tables = {"key_table": table if on_keys else None, "value_table": table if on_values else None}
        mask = None if mask is None else mask.bool()
        fused_attention(q, k, v, **tables, causal=causal, mask=mask).sum().backward()


HALF_OR_SINGLE, ON, EACH = (torch.bfloat16, torch.float32), (True,), (True, False)
ALL_CASES = [  # dtype, precision, width, keys, values, causal, mask
    *itertools.product((*HALF_OR_SINGLE, torch.float16), ("highest",), (64,), EACH, EACH, EACH, ("no_mask",)),
    *itertools.product(HALF_OR_SINGLE, ("high",), (64,), ON, ON, EACH, ("by_key", "by_query")),
    *itertools.product(HALF_OR_SINGLE, ("highest", "high"), (8, 80, 128, 256), ON, ON, (False,), ("by_key",)),
    *itertools.product((torch.float64,), ("highest",), (64, 128, 256), ON, ON, (False,), ("by_query",)),
    *itertools.product((torch.float64,), ("high",), (64,), EACH, (False,), ON, ("no_mask", "by_key")),
]


@pytest.mark.parametrize("capability", ["80", "90"], ids=["a100", "h100"])
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile")
def test_all_variants_of_the_kernels_compile(tmp_path, capability):
    printed = run_python([__file__, capability], 3500, TRITON_CACHE_DIR=str(tmp_path))
    assert len(printed.splitlines()) == 3 * len(ALL_CASES)


if __name__ == "__main__":  # started by run_python
    compile_cases(int(sys.argv[1]))
