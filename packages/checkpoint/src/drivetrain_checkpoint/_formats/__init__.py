"""Checkpoints of this and other formats, read and written as tensors by name."""
