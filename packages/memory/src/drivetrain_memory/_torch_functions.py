"""PyTorch's functions that ask its own allocator, answered by this one or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory._snapshot import keep_history, save_snapshot, snapshot
from drivetrain_memory._stats import accumulated, inspector, torch_stats

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

_USUAL_ENTRIES = 100_000

_reset_at: dict[int, dict[str, int]] = {}


def replace_functions() -> None:
    """Puts answers in the place of PyTorch's functions that would fail."""
    import torch

    of_accelerator = getattr(torch.accelerator, "memory", None)
    for modules, answers in (
        ((torch.cuda.memory, torch.cuda), _ANSWERS | _STATS),
        ((of_accelerator, torch.accelerator), _STATS | _BYTES),
    ):
        for module in modules:
            for name, function in answers.items():
                if hasattr(module, name):
                    setattr(module, name, function)


def _number(device: Any) -> int | None:
    import torch

    if device is None or isinstance(device, int):
        return device
    return torch.device(device).index


def _memory_stats(device: Any = None) -> dict[str, int]:
    number = _number(device)
    return torch_stats(inspector(number), _reset_at.get(_chosen(number), {}))


def _chosen(number: int | None) -> int:
    import torch

    return torch.cuda.current_device() if number is None else number


def _nested_stats(device: Any = None) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in _memory_stats(device).items():
        *path, last = name.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


def _summary(device: Any = None, abbreviated: bool = False) -> str:
    """Returns what is counted here, a line each: PyTorch's table wants more."""
    del abbreviated
    number = _chosen(_number(device))
    lines = [f"drivetrain-memory, device {number}"]
    for name, value in _memory_stats(number).items():
        lines.append(f"{name:<32}{value:>24,}")
    return "\n".join(lines) + "\n"


def _reset_peaks(device: Any = None) -> None:
    found = inspector(_number(device))
    if found is not None:
        found.reset_peaks()


def _reset_accumulated(device: Any = None) -> None:
    number = _number(device)
    found = inspector(number)
    if found is not None:
        _reset_at[_chosen(number)] = accumulated(found)


def _bytes(name: str) -> Callable[..., int]:
    def answer(device: Any = None) -> int:
        return _memory_stats(device).get(name, 0)

    return answer


def _snapshot_of_torch(*_: Any, **__: Any) -> dict[str, Any]:
    return snapshot()


def _segments(*_: Any, **__: Any) -> list[dict[str, Any]]:
    segments: list[dict[str, Any]] = snapshot()["segments"]
    return segments


def _dump(filename: str | os.PathLike[str] = "dump_snapshot.pickle", **_: Any) -> None:
    save_snapshot(filename)


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


_STATS = {
    "memory_stats": _memory_stats,
    "reset_peak_memory_stats": _reset_peaks,
    "reset_accumulated_memory_stats": _reset_accumulated,
}
# Those of `torch.cuda` ask its `memory_stats`, and those of `torch.accelerator` do not.
_BYTES = {
    "memory_allocated": _bytes("allocated_bytes.all.current"),
    "max_memory_allocated": _bytes("allocated_bytes.all.peak"),
    "memory_reserved": _bytes("reserved_bytes.all.current"),
    "max_memory_reserved": _bytes("reserved_bytes.all.peak"),
}
_ANSWERS = {
    "memory_stats_as_nested_dict": _nested_stats,
    "memory_summary": _summary,
    "memory_snapshot": _segments,
    "_snapshot": _snapshot_of_torch,
    "_dump_snapshot": _dump,
    "_record_memory_history": _record,
    "MemPool": _no_pool,
}
