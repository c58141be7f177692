"""Reports without pictures, for tests of their words and figures."""

import pytest

from rpr.report import plot_style


@pytest.fixture
def unrendered(monkeypatch):
    """Plots are neither drawn nor rendered, which takes most of the time of a report (drawn: test_plots.py)."""
    monkeypatch.setattr(plot_style.Plot, "figure", lambda plot, width=0.0: None)
    monkeypatch.setattr(plot_style, "rendered", lambda figure: b"<svg></svg>")
