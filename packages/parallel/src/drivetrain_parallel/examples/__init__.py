"""Example programs over a mesh."""
