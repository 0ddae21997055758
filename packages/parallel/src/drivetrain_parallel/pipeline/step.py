"""One training step over the stages of a pipeline, by one of torch's schedules."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import pipelining

from drivetrain_core import Code, DistributedError, PlanError
from drivetrain_core.extending import batch_size, tensors_of
from drivetrain_parallel.pipeline.failure import FailureBoard
from drivetrain_parallel.pipeline.local_shapes import learn_local_shapes, may_send_parts
from drivetrain_parallel.pipeline.schedules import (
    check_micro_batches,
    schedule_rules,
    stage_owner,
    stages_of_rank,
)
from drivetrain_parallel.pipeline.shared_gradients import SharedGradients
from drivetrain_parallel.pipeline.stubs import signature_of
from drivetrain_parallel.pipeline.wrapping import keep_gathered, wrapping_problem
from drivetrain_parallel.torch_internals import (
    connect_stage_to_others_alone,
    keep_donated_buffers,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_parallel.pipeline.plan import PipelinePlan
    from drivetrain_parallel.pipeline.shapes import TensorShape
    from drivetrain_parallel.pipeline.stage import StageModule

_MAX_DRIVERS = 4


class PipelineStep:
    """Runs micro-batches forwards and backwards through the stages of all ranks.

    Making one is collective over the group, and so is each of its methods: every rank
    of the pipeline calls it with the same micro-batches. Not thread-safe.

    Args:
        stages: This rank's stages, wrapped by FSDP2 or `replicate` if at all.
        plan: How the model is split.
        schedule: One of `SCHEDULES`.
        group: The ranks along the pipeline.
        device: Where the stages are.

    Raises:
        PlanError: The stages are not those that this rank has under the schedule, the
            ranks have different plans, or lay a shared parameter out differently.
    """

    def __init__(
        self,
        stages: Sequence[StageModule],
        plan: PipelinePlan,
        *,
        schedule: str = "1f1b",
        group: dist.ProcessGroup,
        device: torch.device | str = "cpu",
    ) -> None:
        """Checks that the ranks agree, and makes groups for what they share."""
        self._rules = schedule_rules(schedule)
        self._stages, self._plan, self._schedule = list(stages), plan, schedule
        self._group, self._device = group, torch.device(device)
        self._indices = tuple(stage.stage_index for stage in stages)
        self._board = FailureBoard(group)
        self._broken = ""
        # Schedules by number and shape of micro-batches; the one used longest ago goes.
        self._drivers: dict[object, Any] = {}
        self._agree(self._misfit())
        if self._rules.splits_backward:
            keep_gathered(self._stages)
        self._shared = SharedGradients(plan, schedule, stages, group)
        self._learns = self._agree_on_layouts()
        last = stage_owner(schedule, plan.num_stages - 1, group.size())
        self._last_rank = dist.get_global_rank(group, last)

    @property
    def stages(self) -> list[StageModule]:
        """Returns this rank's stages."""
        return list(self._stages)

    def run(
        self, micro_batches: Sequence[Any], weights: Sequence[float]
    ) -> torch.Tensor:
        """Adds the gradient of the weighted losses to `.grad`, and returns their sum.

        Args:
            micro_batches: The parts of this rank's batch, equal in shape.
            weights: What the loss of each is multiplied with.

        Returns:
            The sum of the weighted losses in float32, equal on all ranks.

        Raises:
            PlanError: The micro-batches differ in size or are too few; nothing has
                run, on any rank.
            DistributedError: Another rank failed. After any failure but a `PlanError`
                from above the pipeline cannot be used again.
        """
        self._check(micro_batches, weights)
        before = self._shared.take()
        losses: list[torch.Tensor] = []
        with self._running(micro_batches, weights):
            self._learn(micro_batches[0])
            driver = self._driver(micro_batches)
            index = torch.arange(len(micro_batches))
            driver.step(
                index, index=index, target=index, losses=losses, return_outputs=False
            )
            total = self._total(losses)
            self._shared.sum(before)
        return total

    def _learn(self, batch: Any) -> None:
        if self._learns:
            learn_local_shapes(
                self._stages,
                batch,
                owner=self._owner,
                group=self._group,
                device=self._device,
            )
            self._learns = False

    def _owner(self, stage: int) -> int:
        return stage_owner(self._schedule, stage, self._group.size())

    def _total(self, losses: Sequence[torch.Tensor]) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float32, device=self._device)
        for loss in losses:
            total += loss.detach().float()
        dist.broadcast(total, self._last_rank, group=self._group)
        return total

    @contextlib.contextmanager
    def _running(self, micro_batches: Sequence[Any], weights: Sequence[float]) -> Any:
        """Hands the stages their micro-batches, and tells other ranks of a failure."""
        if self._broken:
            message = f"the pipeline broke in an earlier step: {self._broken}"
            raise DistributedError(message)
        for stage in self._stages:
            stage.set_micro_batches(micro_batches, weights)
        try:
            with keep_donated_buffers(self._rules.splits_backward):
                yield
        except Exception as error:
            self._broken = str(error)
            shown = self._board.explain(self._indices, error)
            if shown is error:
                raise
            raise shown from error
        finally:
            for stage in self._stages:
                stage.set_micro_batches((), ())

    def _driver(self, micro_batches: Sequence[Any]) -> Any:
        """Returns torch's schedule for micro-batches of one shape, made if need be."""
        key = (len(micro_batches), signature_of(micro_batches[0]))
        driver = self._drivers.pop(key, None)
        if driver is None:
            stages = [self._torch_stage(s, micro_batches[0]) for s in self._stages]
            kind = getattr(pipelining, self._rules.torch_name)
            several = issubclass(kind, pipelining.schedules.PipelineScheduleMulti)
            driver = kind(
                stages if several else stages[0],
                len(micro_batches),
                loss_fn=_as_it_is,
                scale_grads=False,
            )
        self._drivers[key] = driver
        if len(self._drivers) > _MAX_DRIVERS:
            del self._drivers[next(iter(self._drivers))]
        return driver

    def _torch_stage(self, stage: StageModule, batch: Any) -> Any:
        # The first is called with the micro-batch's number, the last gives the loss.
        first: tuple[TensorShape, ...] = (((1,), torch.long),)
        last: tuple[TensorShape, ...] = (((), torch.float32),)
        made = pipelining.PipelineStage(
            stage,
            stage.stage_index,
            self._plan.num_stages,
            self._device,
            input_args=_on_meta(first if stage.is_first else stage.input_shapes(batch)),
            output_args=_on_meta(last if stage.is_last else stage.output_shapes(batch)),
            group=self._group,
        )
        return connect_stage_to_others_alone(made)

    def _check(self, micro_batches: Sequence[Any], weights: Sequence[float]) -> None:
        if not micro_batches or len(weights) != len(micro_batches):
            raise PlanError(
                Code.CONFIG,
                "pipeline",
                because=f"there are {len(micro_batches)} micro-batches and "
                f"{len(weights)} weights; there must be one of each at least, and as "
                "many of both",
            )
        shapes = [[tuple(t.shape) for t in tensors_of(part)] for part in micro_batches]
        odd = next((n for n, s in enumerate(shapes) if s != shapes[0]), None)
        if odd is not None:
            sizes = [batch_size(part) for part in micro_batches]
            what = (
                f"samples {sizes}"
                if len(set(sizes)) > 1
                else (
                    f"tensors {shapes[0]} in the first and {shapes[odd]} in number {odd}"
                )
            )
            raise PlanError(
                Code.UNEVEN_MICROBATCH,
                "pipeline",
                because=f"micro-batches must be equal in shape, and have {what}",
                fix="use a batch that divides into equal micro-batches, and pad texts "
                "to one length in a batch",
            )
        check_micro_batches(
            self._schedule,
            len(micro_batches),
            num_ranks=self._group.size(),
            num_stages=self._plan.num_stages,
        )

    def _misfit(self) -> str:
        size = self._group.size()
        if self._plan.num_stages % size:
            return f"{self._plan.num_stages} stages do not divide over {size} ranks"
        per_rank = self._plan.num_stages // size
        if self._rules.fixed and per_rank != self._rules.default_stages:
            return (
                f"{self._schedule} has {self._rules.default_stages} stages a rank, and "
                f"the plan has {per_rank}"
            )
        expected = stages_of_rank(
            self._schedule,
            rank=self._group.rank(),
            num_ranks=size,
            stages_per_rank=per_rank,
        )
        if self._indices != expected:
            return f"this rank must hold stages {expected}, and holds {self._indices}"
        if any(stage.plan.digest != self._plan.digest for stage in self._stages):
            return "the stages were built for another plan"
        return wrapping_problem(self._stages)

    def _agree(self, problem: str) -> None:
        """Raises on every rank what is wrong on any."""
        mine = (problem, self._plan.digest, self._schedule)
        found: list[Any] = [None] * self._group.size()
        dist.all_gather_object(found, mine, group=self._group)
        for rank, (theirs, _, _) in enumerate(found):
            if theirs:
                raise PlanError(
                    Code.CONFIG, "pipeline", because=f"on rank {rank}: {theirs}"
                )
        if len({item[1:] for item in found}) > 1:
            raise PlanError(
                Code.FINGERPRINT,
                "pipeline",
                because="ranks have different plans or schedules: "
                f"{sorted({item[1:] for item in found})}",
                fix="plan the pipeline on one rank and send the plan to the others",
            )

    def _agree_on_layouts(self) -> bool:
        """Returns whether stages on any rank may send parts of tensors."""
        mine = (self._shared.layouts(), may_send_parts(self._stages))
        answers: list[Any] = [None] * self._group.size()
        dist.all_gather_object(answers, mine, group=self._group)
        found = [layouts for layouts, _ in answers]
        for name in {name for layouts in found for name in layouts}:
            kinds = {layouts[name] for layouts in found if name in layouts}
            if len(kinds) > 1:
                raise PlanError(
                    Code.TIED_PARAMS,
                    "pipeline",
                    because=f"{name} is on several stages, and laid out differently "
                    f"there: {sorted(kinds)}",
                    fix="shard it the same way under each of its names, or untie it",
                )
        return any(parts for _, parts in answers)


def _as_it_is(loss: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    del target
    return loss


def _on_meta(shapes: Sequence[TensorShape]) -> tuple[torch.Tensor, ...]:
    return tuple(
        torch.empty(
            shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point
        )
        for shape, dtype in shapes
    )
