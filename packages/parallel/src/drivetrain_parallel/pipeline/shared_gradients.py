"""Sums the gradients of parameters that several stages hold, such as tied embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from drivetrain_core.services import new_local_group
from drivetrain_parallel.pipeline.schedules import stage_owner
from drivetrain_parallel.torch_internals import timeout_of_the_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_parallel.pipeline.plan import PipelinePlan, SharedParameter
    from drivetrain_parallel.pipeline.stage import StageModule


class SharedGradients:
    """Keeps the gradients of shared parameters equal on all stages that hold them.

    Args:
        plan: Which parameters those are.
        schedule: By which stages lie on ranks.
        stages: The stages of this rank.
        group: The ranks of the pipeline.

    Making one is collective over the group: each set of ranks gets a group of its own.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        schedule: str,
        stages: Sequence[StageModule],
        group: dist.ProcessGroup,
    ) -> None:
        """Makes the groups."""
        self._shared = plan.shared
        self._stages = {stage.stage_index: stage for stage in stages}
        size, here = group.size(), group.rank()
        ranks = {
            shared.name: tuple(
                sorted({stage_owner(schedule, stage, size) for stage in shared.names})
            )
            for shared in plan.shared
        }
        self._groups: dict[str, dist.ProcessGroup | None] = {}
        made: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        for name, places in ranks.items():
            if places not in made and len(places) in (1, size):
                made[places] = group if len(places) == size else None
            elif places not in made and here in places:
                members = [dist.get_global_rank(group, place) for place in places]
                with timeout_of_the_job():
                    made[places] = new_local_group(members, group_desc="shared")
            self._groups[name] = made.get(places)

    def take(self) -> list[torch.Tensor | None]:
        """Returns what shared parameters have gathered so far, and clears it.

        It has been summed already, and must not be summed twice.
        """
        taken = []
        for shared in self._shared:
            for parameter in self._held(shared):
                taken.append(parameter.grad)
                parameter.grad = None
        return taken

    @torch.no_grad()
    def sum(self, before: Sequence[torch.Tensor | None]) -> None:
        """Sums the gradients of a run, over this rank's stages, then over the ranks.

        Every rank of the pipeline calls it at the same point.

        Args:
            before: What `take` gave before the run; added afterwards.
        """
        earlier = iter(before)
        for shared in self._shared:
            held = self._held(shared)
            if not held:
                continue
            self._sum(held, self._groups[shared.name])
            for parameter in held:
                gathered = next(earlier)
                if gathered is not None:
                    assert parameter.grad is not None
                    parameter.grad += gathered

    def layouts(self) -> dict[str, str]:
        """Returns how this rank holds each shared parameter, to be compared."""
        found = {}
        for shared in self._shared:
            for parameter in self._held(shared):
                places = getattr(parameter, "placements", ())
                part = tuple(_local(parameter.detach()).shape)
                text = f"{part} of {tuple(parameter.shape)} as {places}"
                found[shared.name] = text
        return found

    def _held(self, shared: SharedParameter) -> list[torch.nn.Parameter]:
        found = {}
        for index, name in shared.names.items():
            if index in self._stages:
                parameter = _registered(self._stages[index].model, name)
                # A frozen one gets no gradient: zeros would let weight decay move it.
                if parameter.requires_grad:
                    found[id(parameter)] = parameter
        return list(found.values())

    def _sum(
        self, held: Sequence[torch.nn.Parameter], group: dist.ProcessGroup | None
    ) -> None:
        for parameter in held:
            if parameter.grad is None:
                # The other stages wait for this one's part, which is nothing.
                parameter.grad = torch.zeros_like(parameter)
        total = _local(held[0].grad)
        for parameter in held[1:]:
            total.add_(_local(parameter.grad))
        if group is not None:
            dist.all_reduce(total, group=group)
        for parameter in held[1:]:
            _local(parameter.grad).copy_(total)


def _registered(model: torch.nn.Module, name: str) -> torch.nn.Parameter:
    # Not the attribute: a module may show its part of a parameter there.
    path, _, key = name.rpartition(".")
    parameter = model.get_submodule(path)._parameters[key]
    assert parameter is not None
    return parameter


def _local(gradient: Any) -> torch.Tensor:
    """Returns this rank's part: stages lay a parameter out over their ranks alike."""
    if isinstance(gradient, DTensor):
        return gradient.to_local()
    assert isinstance(gradient, torch.Tensor)
    return gradient
