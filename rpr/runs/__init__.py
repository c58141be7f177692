"""Runs on disk: lifecycle, locks, checkpoints and loading; and the device they run on."""
