"""Training over a mesh of ranks: its shape, and one room for each of its axes."""

from __future__ import annotations

from drivetrain_core.parallel.mesh_shape import MeshShape

__all__ = ["MeshShape"]
