"""Trials of earlier searches: where they are kept, and when they hold."""

from __future__ import annotations

__all__: list[str] = []
