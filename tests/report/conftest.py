"""Reports without pictures, for tests of their words and figures."""

import pytest

from rpr.report import plot_style


@pytest.fixture
def unrendered(monkeypatch):
    """Plots are drawn, but not rendered, which takes matplotlib the most time."""
    monkeypatch.setattr(plot_style, "rendered", lambda figure: b"<svg></svg>")
