"""Hydra: overrides to typed configurations. hydra_bridge.py alone knows what Hydra keeps private."""
