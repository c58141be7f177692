"""Speed and memory of training steps and layers."""
