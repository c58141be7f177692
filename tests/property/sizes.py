"""Numbers of Hypothesis examples: few in `make test`, many in slow tests; always the same ones."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import SearchStrategy

providers._get_local_constants = lambda: providers._local_constants  # none of whatever modules are loaded

Test = Callable[..., None]
UNICODE = st.characters(exclude_categories=["Cs"])  # as codec="utf-8", which at first tries a million characters


def sized(max_examples: int, *strategies: SearchStrategy[Any]) -> Callable[[Test], Test]:
    """Decorates a property with so many examples in `make test`; its last arguments are drawn, the others fixtures."""

    def decorate(property_: Test) -> Test:
        arguments = [*inspect.signature(property_).parameters.values()][: -len(strategies)]

        @wraps(property_, updated=())  # without its examples, for which pytest's plugin would miss @given
        def test(factor: int, **fixtures: Any) -> None:
            size = settings(
                max_examples=factor * max_examples, deadline=None, derandomize=True, database=None, print_blob=False,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            )  # fmt: skip
            size(given(*strategies)(property_))(**fixtures)

        factor = inspect.Parameter("factor", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([factor, *arguments])  # type: ignore[attr-defined]
        factors = [pytest.param(1, id="quick"), pytest.param(50, id="large", marks=pytest.mark.slow)]
        marked: Test = pytest.mark.parametrize("factor", factors)(test)
        return marked

    return decorate
