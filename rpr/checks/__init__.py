"""Checks of a trained model."""
