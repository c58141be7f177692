"""Speed and memory: training steps by position (steps.py), the loader (loader.py)."""
