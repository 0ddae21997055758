"""Which version of NCCL knows which setting, what it takes, and how defaults changed.

The source is NCCL's manual at 2.32 (its page on environment variables, with its "since"
and "removed" marks), corrected by the names that stand in the libraries of 15 released
versions, one of each minor version from 2.18.3 to 2.32.3, and in its public source to
2.30.7. What is in `SOURCE_ONLY` is in these, but in no manual. An empty version is older
than all that is known. The rows stand in `settings.json`.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

_TABLES: dict[str, Any] = json.loads(
    files("drivetrain_fabric.adviser").joinpath("settings.json").read_text("utf-8")
)

NUMBERS: list[tuple[str, str, int, int]] = _TABLES["numbers"]
"""Name, since, least, most."""

CHOICES: list[tuple[str, str, list[str]]] = _TABLES["choices"]
"""Name, since, what it may be; levels and families are told by their case."""

LISTS: dict[str, list[str]] = _TABLES["lists"]
"""What lists of words consist of; without one of them NCCL does not start."""

TEXTS: list[tuple[str, str]] = _TABLES["texts"]
"""Name, since; any text will do."""

SOURCE_ONLY: list[tuple[str, str, str]] = _TABLES["source_only"]
"""Name, since, the first version without it."""

REMOVED: dict[str, tuple[str, str, str | None]] = _TABLES["removed"]
"""By name: since, the first version without it, what to set instead."""

DEFAULTS: dict[str, list[tuple[str, str]]] = _TABLES["defaults"]
"""Defaults that changed: from which version on, and to what."""

TORCH: list[tuple[str, int | None, int | None]] = _TABLES["torch"]
"""Of torch and Gloo; name, least, most, or None twice for text. Torch 2.13."""
