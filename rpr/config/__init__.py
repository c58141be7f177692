"""Typed configurations: of a run (train.py), and of the other commands (commands.py)."""
