"""Batches: split, moved, loaded by each rank, repeated without end."""
