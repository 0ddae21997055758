"""Finds out what of an optimizer in a checkpoint fits a live one, and puts that back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core._errors import NamesError
from drivetrain_core.services._plain_tree import join_tree, tensor_names
from drivetrain_core.services._shape_mismatch import absent, listing, shape_mismatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_core.services._optimizer_state import OptimizerState
    from drivetrain_core.services.packed_state import Entry
    from drivetrain_core.services.tensor_spec import TensorSpec

_GROUPS = "param_groups"
# Schedulers add these to groups, and may not have come yet.
_OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"}


class OptimizerRestoration:
    """What restores an optimizer: making it changes nothing.

    The state of a parameter is restored whole, if all of it fits, or left as it is. It
    belongs to the parameter of that name, whatever group that is in now. What has no
    name but its place, and the options of a group, need a group of the same parameters
    at the same place. Options that the checkpoint does not know stay.

    Args:
        key: The optimizer's name in the state.
        state: The optimizer.
        entry: The plain half of the optimizer in the checkpoint.
        specs: Its tensors in the checkpoint.
        saved: All tensors in the checkpoint, by name.

    Attributes:
        mismatches: What does not fit.
    """

    def __init__(
        self,
        key: str,
        state: OptimizerState,
        entry: Entry,
        specs: Sequence[TensorSpec],
        saved: Mapping[str, TensorSpec],
    ) -> None:
        self._key = key
        self._state = state
        self._here, self._there = state.groups(), entry["groups"]
        pairs = enumerate(zip(self._here, self._there, strict=False))
        self._groups = {number for number, (here, there) in pairs if here == there}
        self.mismatches = self._group_mismatches()
        self._options = set(self._groups)
        # Tensors inside of options, such as a pair of betas.
        inside = tensor_names(entry["plain"])
        self._inner = {
            spec.name: torch.empty(spec.global_shape, dtype=spec.dtype)
            for spec in specs
            if spec.name in inside
        }
        scalars: Any = join_tree(entry["plain"], self._inner)
        self._specs = [
            replace(spec, name=spec.name.removeprefix(f"{key}."))
            for spec in specs
            if spec.name not in inside
        ]
        self._parameters = self._fitting_parameters(saved)
        self._specs = [spec for spec in self._specs if self._fits(spec.name)]
        self._scalars = {n: v for n, v in scalars.items() if self._fits(n)}
        names = [*scalars, *(spec.name.removeprefix(f"{key}.") for spec in specs)]
        known = {name.split(".", 2)[2] for name in state.options()}
        there = {n.split(".", 2)[2] for n in names if n.startswith(f"{_GROUPS}.")}
        lacking, unknown = sorted(known - there), sorted(there - known - _OF_SCHEDULERS)
        if lacking and unknown:
            what = f"its options are {listing(unknown)}, and not {listing(lacking)}"
            self.mismatches.append(f"{key!r} was another kind of optimizer: {what}")
            self._specs, self._scalars, self._parameters = [], {}, set()

    def prepare(self) -> None:
        """Makes places for the state that is not there yet, and drops what was not."""
        names = {spec.name for spec in self._specs}
        self._state.retain(names | self._scalars.keys(), of=self._parameters)
        self._state.prepare(self._specs)

    def targets(self) -> dict[str, torch.Tensor]:
        """Returns the tensors to be written in place, by their names in the state."""
        present = self._state.tensors()
        # Of a program over a mesh, other ranks may hold some of it.
        return self._inner | {
            f"{self._key}.{spec.name}": present[spec.name]
            for spec in self._specs
            if spec.name in present
        }

    def finish(self) -> None:
        """Takes over the values that are no tensors."""
        self._state.load_scalars(self._scalars)

    def _group_mismatches(self) -> list[str]:
        here, there = chain(*self._here), chain(*self._there)
        found = absent(list(here), list(there), f"{self._key!r}: the parameter ")
        for number in range(max(len(self._here), len(self._there))):
            if number not in self._groups:
                parts = [
                    listing(groups[number]) if number < len(groups) else "no such group"
                    for groups in (self._here, self._there)
                ]
                found.append(
                    f"{self._key!r}: group {number} of the parameters, with its "
                    f"options, is another: {parts[0]} here, {parts[1]} in the checkpoint"
                )
        return found

    def _fitting_parameters(self, saved: Mapping[str, TensorSpec]) -> set[str]:
        """Returns the parameters whose state fits, and notes why that of others not."""
        common = set(chain(*self._here)) & set(chain(*self._there))
        wrong: dict[str, list[str]] = defaultdict(list)
        present = self._state.tensors()
        shapes = self._state.shapes()
        for name in common:
            spec = saved.get(name)
            # A new optimizer has no state yet whose shape could be compared.
            if spec is not None and spec.global_shape != shapes[name]:
                wrong[name].append("its parameter has another shape")
        for spec in self._specs:
            slot, _, name = spec.name.partition(".")
            if slot != _GROUPS and name not in common:
                continue  # its parameter is missed by name already
            reason = self._misfit(spec, present)
            if not reason:
                continue
            if slot != _GROUPS:
                wrong[name].append(reason)
            elif self._fits(spec.name):
                # The group is the same, but not the kind of this option: all or nothing.
                self._options.discard(int(name.partition(".")[0]))
                self.mismatches.append(
                    f"{self._key!r}: the options of the group: {reason}"
                )
        own = {spec.name for spec in self._specs}
        for name in self._state.own:
            bare = name.partition(".")[2]
            if name not in own and bare in common:
                wrong[bare].append(f"{name!r} is here, but not in the checkpoint")
        self.mismatches += [
            f"{self._key!r}: the state of {name!r} does not fit: {'; '.join(reasons)}"
            for name, reasons in sorted(wrong.items())
        ]
        sure = {None, *self._groups}
        placed = {name for name in common if self._place(name) not in sure}
        self.mismatches += [
            f"{self._key!r}: the state of {name!r} has no name but its place, which is another now"
            for name in sorted(placed - wrong.keys())
        ]
        return common - wrong.keys() - placed

    def _misfit(self, spec: TensorSpec, present: Mapping[str, torch.Tensor]) -> str:
        if spec.name in present:
            return shape_mismatch(spec.name, present[spec.name], spec)
        try:
            self._state.check(spec)
        except NamesError as error:
            return str(error)
        return ""

    def _fits(self, name: str) -> bool:
        """Says whether a tensor or a value is to be restored."""
        slot, _, rest = name.partition(".")
        if slot == _GROUPS:
            return int(rest.partition(".")[0]) in self._options
        return rest in self._parameters

    def _place(self, name: str) -> int | None:
        """Returns the group of a parameter that has no name but its place."""
        slot, _, rest = name.partition(".")
        number = rest.partition(".")[0]
        return int(number) if slot == _GROUPS and number.isdecimal() else None
