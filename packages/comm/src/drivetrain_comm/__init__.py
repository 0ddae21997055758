"""Unchanged DDP, as fast as its network allows."""
