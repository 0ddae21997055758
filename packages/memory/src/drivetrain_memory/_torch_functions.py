"""PyTorch's functions that ask its own allocator, answered by this one or refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory._snapshot import keep_history, snapshot
from drivetrain_memory._stats import inspector, torch_stats

if TYPE_CHECKING:
    import os

_USUAL_ENTRIES = 100_000


def replace_functions() -> None:
    """Puts answers in the place of functions of `torch.cuda` that would fail."""
    import torch

    for module in (torch.cuda.memory, torch.cuda):
        for name, function in _ANSWERS.items():
            if hasattr(module, name):
                setattr(module, name, function)


def _number(device: Any) -> int | None:
    import torch

    if device is None or isinstance(device, int):
        return device
    return torch.device(device).index


def _memory_stats(device: Any = None) -> dict[str, int]:
    return torch_stats(inspector(_number(device)))


def _nested_stats(device: Any = None) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in _memory_stats(device).items():
        *path, last = name.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


def _reset_peaks(device: Any = None) -> None:
    found = inspector(_number(device))
    if found is not None:
        found.reset_peaks()


def _snapshot_of_torch(*_: Any, **__: Any) -> dict[str, Any]:
    return snapshot()


def _segments(*_: Any, **__: Any) -> list[dict[str, Any]]:
    segments: list[dict[str, Any]] = snapshot()["segments"]
    return segments


def _dump(filename: str | os.PathLike[str] = "dump_snapshot.pickle", **_: Any) -> None:
    Path(filename).write_bytes(pickle.dumps(snapshot()))


def _record(
    enabled: str | bool | None = "all", *_: Any, max_entries: int = 0, **__: Any
) -> None:
    keep_history((max_entries or _USUAL_ENTRIES) if enabled else 0)


def _no_pool(*_: Any, **__: Any) -> NoReturn:
    message = (
        "torch.cuda.MemPool needs PyTorch's own allocator, and drivetrain_memory.enable()"
        " has replaced it; do without one of both"
    )
    raise MemoryUseError(message)


_ANSWERS = {
    "memory_stats": _memory_stats,
    "memory_stats_as_nested_dict": _nested_stats,
    "reset_peak_memory_stats": _reset_peaks,
    "reset_accumulated_memory_stats": _reset_peaks,
    "memory_snapshot": _segments,
    "_snapshot": _snapshot_of_torch,
    "_dump_snapshot": _dump,
    "_record_memory_history": _record,
    "MemPool": _no_pool,
}
