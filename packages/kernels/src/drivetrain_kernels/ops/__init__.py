"""The ops, one a file; Triton's kernels of an op lie beside it."""

from __future__ import annotations

__all__: list[str] = []
