"""Numbers of Hypothesis examples: few in `make test`, many in slow tests; always the same ones."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

Test = Callable[..., None]


@dataclass(frozen=True)
class Size:
    """`size(20)` decorates a property with 20 examples in `make test`."""

    factor: int

    def __call__(self, max_examples: int) -> settings:
        return settings(
            max_examples=self.factor * max_examples, deadline=None, derandomize=True, database=None, print_blob=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )  # fmt: skip


SIZES = pytest.mark.parametrize(
    "size", [pytest.param(Size(1), id="quick"), pytest.param(Size(50), id="large", marks=pytest.mark.slow)]
)


def sized(max_examples: int, *strategies: SearchStrategy[Any]) -> Callable[[Test], Test]:
    """Decorates a property whose last arguments are drawn from the strategies; the others are fixtures."""

    def decorate(property_: Test) -> Test:
        arguments = [*inspect.signature(property_).parameters.values()][: -len(strategies)]

        @wraps(property_, updated=())  # without its examples, for which pytest's plugin would miss @given
        def test(size: Size, **fixtures: Any) -> None:
            size(max_examples)(given(*strategies)(property_))(**fixtures)

        size = inspect.Parameter("size", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([size, *arguments])  # type: ignore[attr-defined]
        marked: Test = SIZES(test)
        return marked

    return decorate
