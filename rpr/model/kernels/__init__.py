"""Fused attention for GPUs, in Triton."""
