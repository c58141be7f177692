"""Reports without pictures, for tests of their words and figures."""

import pytest

from rpr.report import plots


@pytest.fixture
def unrendered(monkeypatch):
    """Plots are neither drawn nor rendered, which takes most of the time of a report (drawn: test_plots.py)."""
    monkeypatch.setattr(plots.Plot, "figure", lambda plot: None)
    monkeypatch.setattr(plots, "rendered", lambda figure, kind="svg": b"<svg></svg>")
