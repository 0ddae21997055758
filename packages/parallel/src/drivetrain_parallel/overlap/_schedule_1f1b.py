"""1F1B in which no stage waits for a message that it does not need yet."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.pipelining import Schedule1F1B
from torch.distributed.pipelining import schedules as _schedules

from drivetrain_core import DistributedError, MissingLibraryError
from drivetrain_parallel.overlap._errors import OverlapError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.pipelining import PipelineStage


class DecoupledSchedule1F1B(Schedule1F1B):
    """`Schedule1F1B` with receives posted ahead, and sends that nobody waits for.

    torch's own schedule sends and receives in pairs: before each forward and backward a
    stage waits until what it sent has been taken. Here a stage waits for its input
    only, as in "MegaScale", https://arxiv.org/abs/2402.15627, section 3.2. Forwards and
    backwards run in torch's order on the same values, so results are the same bits.

    With `eager`, stages run further forwards ahead, so that activations and gradients
    travel under computation also in the steady state, which plain 1F1B leaves no room
    for: after a gradient has come, the next one depends on the forward before. Stage s
    of P then holds up to 2 (P - s) - 1 microbatches instead of P - s. The order of the
    backwards, and so the result, stays.

    Args:
        stage: The stage of this rank.
        n_microbatches: As in `Schedule1F1B`.
        loss_fn: As in `Schedule1F1B`.
        receives_ahead: How many receives are posted in each direction, at least 1.
        eager: Whether to run forwards ahead.
        groups: One group for activations and one for gradients, each with the ranks of
            the stage's group. Needed on devices: in one group NCCL works off what
            concerns two ranks in order, and a receive that is posted ahead would hold
            up the send behind it.
        options: Further arguments of `Schedule1F1B`.

    Raises:
        OverlapError: An argument is out of range, or groups are missing on a device.
        MissingLibraryError: This torch builds its schedules in another way.

    A step that raises leaves messages behind; its groups are of no use after.

    Example:
        >>> import torch
        >>> from torch.distributed.pipelining import PipelineStage
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> stage = PipelineStage(torch.nn.Linear(2, 2), 0, 1, torch.device("cpu"))
        >>> loss = torch.nn.functional.mse_loss
        >>> schedule = DecoupledSchedule1F1B(stage, 2, loss_fn=loss)
        >>> schedule.step(torch.ones(4, 2), target=torch.ones(4, 2)).shape
        torch.Size([4, 2])
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        stage: PipelineStage,
        n_microbatches: int,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        *,
        receives_ahead: int = 2,
        eager: bool = False,
        groups: tuple[dist.ProcessGroup, dist.ProcessGroup] | None = None,
        **options: Any,
    ) -> None:
        """Checks the arguments, and that torch's schedule is as expected."""
        _require_seams()
        if receives_ahead < 1:
            message = f"receives_ahead must be at least 1, got {receives_ahead}"
            raise OverlapError(message)
        device = torch.device(stage.device)
        if groups is None and device.type != "cpu":
            message = (
                f"stage {stage.stage_index} is on {device}, where activations and "
                "gradients need a group each, or messages hold each other up; pass "
                "groups=(dist.new_group(ranks), dist.new_group(ranks))"
            )
            raise OverlapError(message)
        super().__init__(stage, n_microbatches, loss_fn, **options)
        self._whole_stage: Any = stage
        self._lanes = groups or (stage.group, stage.group)
        self._receives_ahead = receives_ahead
        self._warmup = warmup_depth(stage.stage_index, stage.num_stages, eager=eager)

    def _initialize_stage(self, *args: Any, **kwargs: Any) -> None:
        """Lets torch prepare the stage itself, and posts the first receives then."""
        decoupled, self._stage = self._stage, self._whole_stage
        try:
            super()._initialize_stage(*args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            self._stage = decoupled
        decoupled.start()

    def _step_microbatches(self, *args: Any, **kwargs: Any) -> None:
        """Runs torch's schedule on a stage that handles its messages itself."""
        self._stage: Any = _DecoupledStage(
            self._whole_stage, self._lanes, self._receives_ahead, self._n_microbatches
        )
        num_stages = self._num_stages
        # What torch's loop counts its warm-up from; elsewhere it is what it says.
        self._num_stages = self._whole_stage.stage_index + self._warmup
        try:
            super()._step_microbatches(*args, **kwargs)
            self._stage.finish()
        finally:
            self._stage, self._num_stages = self._whole_stage, num_stages


def warmup_depth(stage: int, num_stages: int, *, eager: bool) -> int:
    """Returns how many forwards a stage runs before its first backward.

    Example:
        >>> [warmup_depth(stage, 3, eager=False) for stage in range(3)]
        [3, 2, 1]
        >>> [warmup_depth(stage, 3, eager=True) for stage in range(3)]
        [5, 3, 1]
    """
    depth = num_stages - stage
    return 2 * depth - 1 if eager else depth


class _DecoupledStage:
    """A stage whose sends and receives the schedule does not see.

    Everything else is the stage's own. Messages of one direction go in the order of
    microbatches, so each finds the receive that was posted for it.
    """

    def __init__(
        self,
        stage: Any,
        lanes: tuple[dist.ProcessGroup | None, dist.ProcessGroup | None],
        ahead: int,
        num_microbatches: int,
    ) -> None:
        self._whole = stage
        self._ahead = ahead
        forward, backward = lanes
        self._activations = _Lane(
            stage.get_fwd_recv_ops, forward, num_microbatches, "activation"
        )
        self._gradients = _Lane(
            stage.get_bwd_recv_ops, backward, num_microbatches, "gradient"
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def start(self) -> None:
        """Posts the first receives; the stage's buffers exist by now."""
        self._activations.post(self._ahead)
        self._gradients.post(self._ahead)

    def finish(self) -> None:
        """Waits until everything that was sent has left."""
        self._activations.settle(keep=0)
        self._gradients.settle(keep=0)

    def get_fwd_recv_ops(self, at: int) -> list[dist.P2POp]:
        """Returns nothing: it is posted already, and `forward_one_chunk` waits."""
        del at
        return []

    def get_bwd_recv_ops(self, at: int) -> list[dist.P2POp]:
        """Returns nothing: it is posted already, and `backward_one_chunk` waits."""
        del at
        return []

    def forward_one_chunk(self, at: int, *args: Any, **kwargs: Any) -> Any:
        """Waits for the activation, posts a later one's receive, and computes."""
        self._activations.wait(at)
        self._activations.post(at + 1 + self._ahead)
        return self._whole.forward_one_chunk(at, *args, **kwargs)

    def backward_one_chunk(self, at: int, *args: Any, **kwargs: Any) -> Any:
        """Waits for the gradient, posts a later one's receive, and computes."""
        self._gradients.wait(at)
        self._gradients.post(at + 1 + self._ahead)
        # Its gradient has come, so the activation was taken: this does not wait.
        self._activations.settle_one(at)
        return self._whole.backward_one_chunk(at, *args, **kwargs)

    def get_fwd_send_ops(self, at: int) -> list[dist.P2POp]:
        """Sends at once, and returns nothing."""
        self._activations.send(at, self._whole.get_fwd_send_ops(at))
        if not self._whole.has_backward:
            self._activations.settle(keep=self._ahead)
        return []

    def get_bwd_send_ops(self, at: int) -> list[dist.P2POp]:
        """Sends at once, and returns nothing."""
        self._gradients.send(at, self._whole.get_bwd_send_ops(at))
        # More would hold the memory of as many gradients.
        self._gradients.settle(keep=self._ahead)
        return []


class _Lane:
    """The messages of one direction: receives by microbatch, and sends under way."""

    def __init__(
        self,
        receives_of: Callable[[int], Sequence[dist.P2POp]],
        group: dist.ProcessGroup | None,
        num_microbatches: int,
        what: str,
    ) -> None:
        self._receives_of = receives_of
        self._group = group
        self._num_microbatches = num_microbatches
        self._what = what
        self._num_posted = 0
        self._receives: dict[int, list[dist.Work | None]] = {}
        # The tensors too: memory of theirs must last until they have left.
        self._sends: deque[tuple[int, list[tuple[dist.Work | None, torch.Tensor]]]]
        self._sends = deque()

    def post(self, until: int) -> None:
        """Posts the receives of the microbatches before one."""
        while self._num_posted < min(until, self._num_microbatches):
            at = self._num_posted
            try:
                self._receives[at] = [
                    dist.irecv(op.tensor, src=op.peer, group=self._group)
                    for op in self._receives_of(at)
                ]
            except RuntimeError as error:
                self._fail(at, error)
            self._num_posted += 1

    def wait(self, at: int) -> None:
        """Waits for what belongs to a microbatch."""
        self.post(at + 1)
        self._wait_for(at, self._receives.pop(at))

    def send(self, at: int, ops: Sequence[dist.P2POp]) -> None:
        """Sends what belongs to a microbatch, without a wait."""
        try:
            sent = [
                (dist.isend(op.tensor, dst=op.peer, group=self._group), op.tensor)
                for op in ops
            ]
        except RuntimeError as error:
            self._fail(at, error)
        self._sends.append((at, sent))

    def settle(self, keep: int) -> None:
        """Waits for all sends but the last ones."""
        while len(self._sends) > keep:
            self.settle_one(self._sends[0][0])

    def settle_one(self, at: int) -> None:
        """Waits for the sends up to a microbatch."""
        while self._sends and self._sends[0][0] <= at:
            sent_at, sent = self._sends.popleft()
            self._wait_for(sent_at, [work for work, _ in sent])

    def _wait_for(self, at: int, works: Sequence[dist.Work | None]) -> None:
        for work in works:
            if work is None:
                continue
            try:
                work.wait()
            except RuntimeError as error:
                self._fail(at, error)

    def _fail(self, at: int, error: RuntimeError) -> NoReturn:
        message = (
            f"rank {dist.get_rank()} could not exchange the {self._what} of microbatch "
            f"{at} with the stage beside it, which is gone or stuck: {error}"
        )
        raise DistributedError(message) from error


def _require_seams() -> None:
    """Raises unless torch's 1F1B has what the decoupled one builds on."""
    base = _schedules.PipelineScheduleSingle
    missing = [
        name
        for name in ("_initialize_stage", "_step_microbatches")
        if not callable(getattr(base, name, None))
    ]
    used = set(Schedule1F1B._step_microbatches.__code__.co_names)
    missing += sorted(_USED_BY_SCHEDULE - used)
    if missing:
        message = (
            f"torch {torch.__version__} builds its 1F1B schedule in another way: no "
            f"{', '.join(missing)}; DecoupledSchedule1F1B is for torch 2.11 to 2.13: use "
            "torch's Schedule1F1B, or pip install 'torch==2.13.*'"
        )
        raise MissingLibraryError(message)


# What torch's loop must ask of a stage, so that the decoupled one is asked in its place.
_USED_BY_SCHEDULE = frozenset(
    {
        "_initialize_stage",
        "_num_stages",
        "_stage",
        "backward_one_chunk",
        "forward_one_chunk",
        "get_bwd_recv_ops",
        "get_bwd_send_ops",
        "get_fwd_recv_ops",
        "get_fwd_send_ops",
        "stage_index",
    }
)
