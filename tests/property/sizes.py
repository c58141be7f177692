"""Numbers of Hypothesis examples: few in `make test`, many in slow tests; always the same ones."""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings


@dataclass(frozen=True)
class Size:
    """`size(20)` decorates a property with 20 examples in `make test`."""

    factor: int

    def __call__(self, max_examples: int, **others: int) -> settings:
        return settings(
            max_examples=self.factor * max_examples, deadline=None, derandomize=True, database=None, print_blob=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], **others,
        )  # fmt: skip


SIZES = pytest.mark.parametrize(
    "size", [pytest.param(Size(1), id="quick"), pytest.param(Size(50), id="large", marks=pytest.mark.slow)]
)
