"""Weights & Biases: the only room that imports it."""
