"""Training: the only room that knows Lightning and Weights & Biases."""
