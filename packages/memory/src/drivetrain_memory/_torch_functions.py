"""PyTorch's functions that ask its own allocator, answered by this one or refused."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory._mem_pool import MemPool
from drivetrain_memory._snapshot import keep_history, save_snapshot, snapshot
from drivetrain_memory._stats import inspector, torch_stats

if TYPE_CHECKING:
    from collections.abc import Iterator

_USUAL_ENTRIES = 100_000

_reset_at: dict[int, dict[str, int]] = {}
_fractions: dict[int, float] = {}


def replace_functions() -> None:
    """Puts answers in the place of PyTorch's functions that would fail."""
    import torch

    of_accelerator = getattr(torch.accelerator, "memory", None)
    set_of_torch = torch.cuda.set_per_process_memory_fraction

    @functools.wraps(set_of_torch)
    def set_fraction(fraction: float, device: Any = None) -> None:
        set_of_torch(fraction, device)
        _fractions[_number(device)] = fraction

    setter = {"set_per_process_memory_fraction": set_fraction}
    # Those of `torch.accelerator` ask PyTorch's own allocator, whichever is current.
    emptying = {"empty_cache": torch.cuda.empty_cache}
    for modules, answers in (
        ((torch.cuda.memory, torch.cuda), _ANSWERS | _STATS | setter),
        ((of_accelerator, torch.accelerator), _STATS | emptying),
    ):
        for module in modules:
            for name, function in answers.items():
                if hasattr(module, name):
                    setattr(module, name, function)


def _number(device: Any) -> int:
    """Returns a device's number, as PyTorch reads what it is given."""
    import torch

    if device is None:
        device = torch.cuda.current_device()
    number = torch.cuda._utils._get_device_index(device, optional=True)
    if not 0 <= number < torch.cuda.device_count():
        message = f"there is no CUDA device {number}"
        raise MemoryUseError(message)
    return number


def _memory_stats(device: Any = None) -> dict[str, int]:
    number = _number(device)
    return torch_stats(inspector(number), _reset_at.get(number, {}))


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
    number = _number(device)
    stats = _memory_stats(number).items()
    lines = [f"{name:<32}{value:>24,}\n" for name, value in stats]
    return f"drivetrain-memory, device {number}\n{''.join(lines)}"


def _reset_peaks(device: Any = None) -> None:
    if (found := inspector(_number(device))) is not None:
        found.reset_peaks()


def _reset_accumulated(device: Any = None) -> None:
    number = _number(device)
    if (found := inspector(number)) is not None:
        _reset_at[number] = found.counters().as_dict()


def _fraction(device: Any = None) -> float:
    return _fractions.get(_number(device), 1.0)


def _snapshot_of_torch(*_: Any, **__: Any) -> dict[str, Any]:
    return snapshot()


def _segments(mempool_id: Any = None, *_: Any, **__: Any) -> Any:
    wanted = None if mempool_id in (None, (0, 0)) else tuple(mempool_id)
    segments = snapshot()["segments"]
    return [s for s in segments if wanted in (None, s["segment_pool_id"])]


def _dump(filename: Any = "dump_snapshot.pickle", *_: Any, **__: Any) -> None:
    save_snapshot(filename)


def _record(enabled: str | bool | None = "all", *rest: Any, **options: Any) -> None:
    if options.get("record_pinned_host_memory"):
        _refuse("the history of pinned memory", "leave out record_pinned_host_memory")
    # The older form begins with a bool.
    old = isinstance(enabled, bool)
    name, place = ("trace_alloc_max_entries", 1) if old else ("max_entries", 2)
    most = rest[place] if len(rest) > place else options.get(name, _USUAL_ENTRIES)
    keep_history(most if enabled else 0)


def _no_switch(value: bool = True) -> None:
    if not value:
        _refuse("torch.cuda.caching_allocator_enable(False)", "do without one of both")


@contextmanager
def _use_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    with pool.used_on(_number(device)):
        yield


def _refuse(what: str, way_out: str) -> NoReturn:
    message = (
        f"{what} needs PyTorch's own allocator, and drivetrain_memory.enable() has "
        f"replaced it; {way_out}"
    )
    raise MemoryUseError(message)


_STATS = {
    "memory_stats": _memory_stats,
    "reset_peak_memory_stats": _reset_peaks,
    "reset_accumulated_memory_stats": _reset_accumulated,
}
_ANSWERS = {
    "memory_stats_as_nested_dict": _nested_stats,
    "memory_summary": _summary,
    "memory_snapshot": _segments,
    "_snapshot": _snapshot_of_torch,
    "_dump_snapshot": _dump,
    "_record_memory_history": _record,
    "get_per_process_memory_fraction": _fraction,
    "caching_allocator_enable": _no_switch,
    "MemPool": MemPool,
    "use_mem_pool": _use_pool,
}
