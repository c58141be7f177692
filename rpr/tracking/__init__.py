"""Weights & Biases: the only package that imports it."""
