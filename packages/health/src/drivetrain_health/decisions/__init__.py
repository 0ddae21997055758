"""Decisions of node checks, as pure functions: pairs, rounds, and the verdict on a node."""

from __future__ import annotations

__all__: list[str] = []
