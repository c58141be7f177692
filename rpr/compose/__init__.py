"""Hydra: overrides to typed configurations. Only hydra_bridge.py uses Hydra's private API."""
