"""The default precision of float32 matrix products, by processor."""

import pytest

from rpr.compose.composition import compose_train
from rpr.runs import runtime


@pytest.mark.parametrize("choice, flags, expected", [
    ("hardware=cpu", {"avx512f", "amx_bf16", "amx_tile"}, "medium"),
    ("hardware=cpu", {"avx512f", "avx512_bf16"}, "highest"),
    ("hardware=cpu", set(), "highest"),
    ("hardware=1xgpu", {"amx_bf16"}, "high"),
])  # fmt: skip
def test_matmul_precision(monkeypatch, choice, flags, expected):
    monkeypatch.setattr(runtime, "_of_cpuinfo", {"flags": " ".join(flags)}.get)
    assert runtime.matmul_precision(compose_train([choice]).hardware) == expected
    assert runtime.matmul_precision(compose_train([choice, "hardware.matmul_precision=medium"]).hardware) == "medium"
