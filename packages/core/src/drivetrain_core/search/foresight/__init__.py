"""What is expected of a plan before its trial: memory and time, on fake tensors."""

from __future__ import annotations

__all__: list[str] = []
