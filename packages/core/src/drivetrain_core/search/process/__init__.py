"""Where trials run: in processes of their own, to which the program is shipped."""

from __future__ import annotations

__all__: list[str] = []
