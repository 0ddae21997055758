"""What CPU kernels need beside the tensors that they return: measured, by running them.

A fake operator knows the shape of its result, not what the kernel does: oneDNN packs
operands into buffers of its own, returns workspaces whose size only it knows, and some
kernels return another dtype than their fake form says. The few operators for which this
matters run once for real on zeros of the same shapes, while they are small enough.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

_NAMES = (
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "convolution_backward",
    "mkldnn_rnn_layer",
    "mkldnn_rnn_layer_backward",
    "mm",
    "native_group_norm",
    "native_group_norm_backward",
)
# Products in fp32 go to a BLAS, which keeps its buffers out of torch's allocator.
_LOW_PRECISION_ONLY = {"addmm", "bmm", "baddbmm", "mm"}
_MAX_BYTES = 256 * 2**20
_MAX_SECONDS = 3.0


class KernelMemory:
    """Runs known operators for real once a signature, and remembers what they did.

    Args:
        max_seconds: Seconds to spend on real runs in all.
    """

    def __init__(self, max_seconds: float = _MAX_SECONDS) -> None:
        """Starts with nothing measured."""
        self._left_s = max_seconds
        self._found: dict[Any, tuple[Any, int] | None] = {}

    def knows(self, func: Any, args: Any) -> bool:
        """Says whether an operator is worth a real run."""
        name = func.overloadpacket.__name__
        if func.namespace != "aten" or name not in _NAMES:
            return False
        if name not in _LOW_PRECISION_ONLY:
            return True
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        return all(t.dtype in (torch.bfloat16, torch.float16) for t in tensors)

    def run(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
        """Returns an operator's fake result, and the bytes it holds beside it.

        The result is None when the operator is too large or fails.
        """
        leaves, _ = tree_flatten((args, kwargs))
        # A recurrent layer keeps its workspace for a backward only.
        mode = torch.is_grad_enabled()
        key = (func, mode, *(_signature(leaf) for leaf in leaves))
        if key not in self._found:
            self._found[key] = self._measured(func, args, kwargs, leaves)
        found = self._found[key]
        if found is None:
            return None, 0
        (shapes, spec), extra = found
        return tree_unflatten([_made(shape) for shape in shapes], spec), extra

    def _measured(self, func: Any, args: Any, kwargs: Any, leaves: Any) -> Any:
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        size = sum(t.untyped_storage().nbytes() for t in tensors)
        if size > _MAX_BYTES or self._left_s <= 0.0:
            return None
        if any(t.device.type != "cpu" for t in tensors):
            return None
        started = time.perf_counter()
        try:
            with unset_fake_temporarily():
                return _run_for_real(func, args, kwargs)
        except Exception:  # noqa: BLE001
            # A correction that cannot be had; the fake operator does without.
            return None
        finally:
            self._left_s -= time.perf_counter() - started


def _run_for_real(func: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = tree_map_only(torch.Tensor, _zeros, (args, kwargs))
    func(*args, **kwargs)  # oneDNN keeps what it makes at the first call.
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        out = func(*args, **kwargs)
    live = highest = 0
    for _, size in allocations(profiler):
        live += size
        highest = max(highest, live)
    leaves, spec = tree_flatten(out)
    shapes = [_signature(leaf) for leaf in leaves]
    return (shapes, spec), highest - live


def allocations(profiler: torch.profiler.profile) -> list[tuple[int, int]]:
    """Returns (time in ns, signed bytes) of each allocation and free, in order."""
    results: Any = profiler.profiler and profiler.profiler.kineto_results
    found: list[tuple[int, int]] = []
    pending = list(results.experimental_event_tree())
    while pending:
        event = pending.pop()
        if event.tag == _EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.alloc_size))
        pending.extend(event.children)
    return sorted(found, key=lambda entry: entry[0])


def _signature(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return (tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype)
    return repr(leaf) if leaf is not None else None


def _made(signature: Any) -> Any:
    if not isinstance(signature, tuple):
        return None
    shape, stride, dtype = signature
    return torch.empty_strided(shape, stride, dtype=dtype, device="cpu")


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    return torch.empty_strided(shape, stride, dtype=tensor.dtype).zero_()
