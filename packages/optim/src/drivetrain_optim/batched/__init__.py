"""Batched optimizer steps: parameters of one kind, their state, and how they are stepped."""
