"""Fixtures of the tests that need a CUDA device; most need only torch and pytest. Tests are skipped without a device or
package, and once most of the time of one call has passed; the summary gives the reasons.

`--device=cpu` runs what can run on a CPU, to test the tests.
"""

import os
import time
from pathlib import Path

import pytest

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for deterministic cuBLAS
import torch

HERE = Path(__file__).parent
STARTED = time.monotonic()
LAST_START_SECONDS = 400  # no test is started later, so that all end within eight minutes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cuda", choices=["cuda", "cpu"], help="where the tests of tests/gpu run")


def device_of(config: pytest.Config) -> torch.device:
    return torch.device(config.getoption("--device", "cuda"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if device_of(config).type == "cpu" or torch.cuda.is_available():
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def _skip_after_time_limit() -> None:
    if time.monotonic() - STARTED > LAST_START_SECONDS:
        pytest.skip(f"{LAST_START_SECONDS} seconds have passed")


@pytest.fixture(autouse=True)
def _reset_matmul_precision() -> object:
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """With an index, like the device of a tensor."""
    device = device_of(request.config)
    return device if device.type == "cpu" else torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    if device.type != "cuda":
        pytest.skip("measures a CUDA device")
    return device
