"""Puts the checkpointer into other libraries: one module for each, named after it.

Importing one of them imports its library; importing this package imports nothing.
"""

from __future__ import annotations

__all__: list[str] = []
