"""Scores of hypotheses, their intervals, and paired tests between runs."""
