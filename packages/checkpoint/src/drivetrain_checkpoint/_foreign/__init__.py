"""Checkpoints of other formats, and this one, as tensors by name."""
