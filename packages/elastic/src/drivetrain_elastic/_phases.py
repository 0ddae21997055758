"""What workers say that they do, where others tell them apart by it."""

from __future__ import annotations

__all__ = ["TORCHRUN_AGENT"]

TORCHRUN_AGENT = "runs its ranks as an agent of torchrun"
"""Of an agent that is the only worker of its node here; its ranks are torchrun's affair."""
