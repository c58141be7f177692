"""Speed and memory: training steps and layers (benchmark.py), the data loader (loader.py)."""
