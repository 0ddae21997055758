"""Whether a plan still trains the same model: what is observed, and compared."""

from __future__ import annotations

__all__: list[str] = []
