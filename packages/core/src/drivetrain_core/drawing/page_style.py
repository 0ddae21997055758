"""What the page of a report looks like, and the little script that sorts its tables."""

from __future__ import annotations

from drivetrain_core.lazy import read_beside

STYLE = read_beside(__name__, f"{__file__.rpartition('/')[0]}/page.css")
"""The style sheet."""

SCRIPT = read_beside(__name__, f"{__file__.rpartition('/')[0]}/page.js")
"""Sorts a table by the column that is clicked; the page is whole without it."""
