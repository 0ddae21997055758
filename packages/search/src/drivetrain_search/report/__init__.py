"""What a search tells: records of trials, a table, pictures, and a page."""

from __future__ import annotations

__all__: list[str] = []
