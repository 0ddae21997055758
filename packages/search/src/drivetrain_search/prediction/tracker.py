"""Counts the live bytes of all storages, and the operations, while a program runs."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from drivetrain_search.prediction.time_model import MATMUL, OTHER, POINTWISE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_search.prediction.kernel_memory import KernelMemory

ACTIVATIONS, GRADIENTS = "activations", "gradients"

# They read the rows that they are asked for, not the whole table.
_GATHERS = {
    torch.ops.aten.embedding.default,
    torch.ops.aten.index_select.default,
    torch.ops.aten.gather.default,
    torch.ops.aten.index.Tensor,
}


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every storage from its first tensor to its end.

    Views share a storage and count once. A storage is of one kind: `activations`
    unless it is claimed for another. Within a phase, the highest moment is kept.

    Args:
        kernels: Knows what kernels need beside the tensors that they return.

    Attributes:
        live: Bytes by kind, now.
        peaks: Of each phase, the bytes by kind at its highest moment.
        work: Operations by section, then by class.
    """

    def __init__(self, kernels: KernelMemory | None = None) -> None:
        """Starts with nothing alive."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[str, int] = defaultdict(int)
        self.peaks: dict[str, dict[str, int]] = {}
        self.work: dict[str, dict[str, dict[str, Any]]] = {}
        self._kernels = kernels
        self._total = 0
        self._highest = 0
        self._phase = ""
        self._section: dict[str, dict[str, Any]] | None = None
        self._storages: dict[int, tuple[weakref.ref[Any], str, int]] = {}

    def __enter__(self) -> Self:
        """Starts to count, the states of the random generator as well.

        A recomputed block keeps one, which no operator makes.
        """
        kept = self._get_rng_state = torch.get_rng_state

        def counted() -> torch.Tensor:
            state = kept()
            self._add(state, ACTIVATIONS)
            self._note(0)
            return state

        torch.get_rng_state = counted
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: object) -> None:
        """Ends the count."""
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        torch.get_rng_state = self._get_rng_state

    def claim(self, tensors: Iterable[torch.Tensor | None], kind: str) -> None:
        """Counts tensors as being of a kind, from now on."""
        for tensor in tensors:
            if tensor is not None:
                self._add(tensor, kind, replace=True)

    def claim_rest(self, old: str, kind: str) -> None:
        """Counts everything of one kind as being of another."""
        for key, (storage, known, size) in list(self._storages.items()):
            if known == old:
                self._storages[key] = (storage, kind, size)
        self.live[kind] += self.live.pop(old, 0)

    def phase(self, name: str) -> None:
        """Starts a phase; of one that comes again, the higher peak is kept."""
        if name == self._phase:
            return
        self._phase = name
        self._highest = sum(self.peaks.get(name, {}).values())
        self._note(0)

    def section(self, name: str | None) -> None:
        """Counts operations into a section, or into none."""
        self._section = None if name is None else self.work.setdefault(name, {})

    def _add(self, tensor: torch.Tensor, kind: str, *, replace: bool = False) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        known = self._storages.get(key)
        if known is not None:
            if not replace:
                kind = known[1]
            if (kind, size) == known[1:]:
                return
            self._change(known[1], -known[2])
        reference = known[0] if known else weakref.ref(storage, self._forget(key))
        self._storages[key] = (reference, kind, size)
        self._change(kind, size)

    def _forget(self, key: int) -> Any:
        def gone(_: object) -> None:
            _, kind, size = self._storages.pop(key)
            self._change(kind, -size)

        return gone

    def _change(self, kind: str, size: int) -> None:
        self.live[kind] += size
        self._total += size

    def _note(self, extra: int) -> None:
        """Keeps this moment if it is the highest of its phase."""
        if self._total + extra > self._highest:
            self._highest = self._total + extra
            moment = dict(self.live)
            moment[ACTIVATIONS] = moment.get(ACTIVATIONS, 0) + extra
            self.peaks[self._phase] = moment

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs an operator and counts what it made."""
        del types
        kwargs = kwargs or {}
        out, extra = None, 0
        if self._kernels is not None and self._kernels.knows(func, args):
            out, extra = self._kernels.run(func, args, kwargs)
        if out is None:
            out = func(*args, **kwargs)
        if func.is_view or func.namespace == "prim":
            return out
        for leaf in tree_iter(out):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf, ACTIVATIONS)
        self._note(extra)
        if self._section is not None:
            self._count(self._section, func, args, kwargs, out)
        return out

    def _count(self, section: dict[str, dict[str, Any]], func: Any, *call: Any) -> None:
        args, kwargs, out = call
        read = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)]
        made = [t for t in tree_iter(out) if isinstance(t, torch.Tensor)]
        count = flop_registry.get(func.overloadpacket)
        pointwise = torch.Tag.pointwise in func.tags
        kind = MATMUL if count else POINTWISE if pointwise else OTHER
        floating = [t.dtype for t in (*read, *made) if t.is_floating_point()]
        dtype = str(floating[0] if floating else torch.int64).removeprefix("torch.")
        entry = section.setdefault(
            f"{kind}/{dtype}",
            {"kind": kind, "dtype": dtype, "flops": 0.0, "bytes": 0.0, "calls": 0.0},
        )
        if count:
            entry["flops"] += count(*args, **kwargs, out_val=out)
        written = _bytes(made)
        entry["bytes"] += written + (written if func in _GATHERS else _bytes(read))
        entry["calls"] += 1


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(min(t.numel() * t.element_size(), _whole(t)) for t in tensors)


def _whole(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()
