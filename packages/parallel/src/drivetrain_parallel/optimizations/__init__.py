"""Optimizations of a plan: the mesh, its schedule, and what goes with its axes."""
