"""Trained runs on disk: checkpoints, weights, the configuration of a record; and the device they are used on."""
