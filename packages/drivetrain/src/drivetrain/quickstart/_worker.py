"""Trains the program of a script with other workers, of which one is killed.

Run by `drivetrain elastic run -m drivetrain.quickstart._worker SPEC`.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from drivetrain.quickstart._batches import open_batches
from drivetrain.quickstart._elastic_spec import ElasticSpec
from drivetrain.quickstart._program import build, seed_everything, undone
from drivetrain.quickstart._steps_log import StepsLog
from drivetrain_checkpoint import Checkpointer
from drivetrain_core import DistributedError
from drivetrain_core.services import BatchPlan, TorchProcessGroupFactory
from drivetrain_elastic import ElasticLoop, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain.quickstart._batches import Batches
    from drivetrain_core import Accelerated
    from drivetrain_elastic import Step

_POLL_S = 0.01
_PATIENCE_S = 300.0


def main(argv: list[str] | None = None) -> int:
    """Trains; returns the exit status.

    Args:
        argv: The path of an `ElasticSpec`; None for that of the process.
    """
    (path,) = sys.argv[1:] if argv is None else argv
    spec = ElasticSpec.load(Path(path))
    accelerated = build(spec.script, spec.arguments, spec.plan())
    batches = open_batches(accelerated, spec.order)
    checkpointer = Checkpointer(spec.folder / "checkpoints", job=spec.job)
    # From here on the agent knows that this program is an elastic one, and starts more.
    loop = _loop(accelerated, checkpointer, spec)
    with _one_at_a_time(spec.folder / "compiling"):
        _warm_up(accelerated, batches, spec)
    spec.compiled(os.getpid()).touch()
    _wait_for_others(spec)
    seed_everything()
    _train(loop, accelerated, batches, spec)
    if loop.is_done and loop.rank == 0:
        checkpointer.stop_daemon()
    return 0


def _loop(
    accelerated: Accelerated, checkpointer: Checkpointer, spec: ElasticSpec
) -> ElasticLoop:
    scheduler = accelerated.scheduler
    return ElasticLoop(
        accelerated.module,
        accelerated.optimizer,
        schedule=Schedule(
            num_samples=spec.num_steps * spec.global_batch,
            global_batch=spec.global_batch,
            shuffle=False,
        ),
        num_steps=spec.num_steps,
        num_micro_batches=spec.num_passes,
        state={} if scheduler is None else {"scheduler": scheduler},
        checkpointer=checkpointer,
        save_every=spec.save_every,
        factory=_factory(accelerated.device, spec),
    )


def _factory(
    device: torch.device, spec: ElasticSpec
) -> TorchProcessGroupFactory | None:
    """Returns what makes process groups; None for what elastic training takes itself.

    NCCL refuses ranks that share a device.
    """
    if device.type == "cpu" or torch.accelerator.device_count() >= spec.num_workers:
        return None
    return TorchProcessGroupFactory("gloo")


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Lets one process compile, and the others read what it has compiled."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _warm_up(accelerated: Accelerated, batches: Batches, spec: ElasticSpec) -> None:
    """Makes a pass of each size that will be made, of which nothing is left."""
    split = BatchPlan(
        world_size=spec.num_workers,
        global_batch=spec.global_batch,
        num_micro_batches=spec.num_passes,
    )
    ranks = range(spec.num_workers)
    rows = [one for rank in ranks for one in split.for_rank(rank).slices]
    by_size = {one.stop - one.start: range(one.start, one.stop) for one in rows}
    with undone(accelerated):
        for places in by_size.values():
            accelerated.backward(accelerated.loss_of(batches.part(places)))


def _wait_for_others(spec: ElasticSpec) -> None:
    """Waits until all that train, and those in reserve, have compiled."""
    end_s = time.monotonic() + _PATIENCE_S
    while len(list(spec.folder.glob("compiled-*"))) < spec.num_ready:
        if time.monotonic() > end_s:
            message = f"not all workers have compiled within {_PATIENCE_S:g} s"
            raise DistributedError(message)
        time.sleep(_POLL_S)


def _train(
    loop: ElasticLoop, accelerated: Accelerated, batches: Batches, spec: ElasticSpec
) -> None:
    log = StepsLog(spec.folder)
    for step in loop:
        _catch_up(accelerated.scheduler, loop.step)
        with step:
            for part in step.parts():
                loss = accelerated.loss_of(batches.part(part.indices)) * part.weight
                log.write("part", step, samples=part.indices, loss=loss.item())
                _stand(step, spec, log)
                accelerated.backward(loss)
            if accelerated.max_grad_norm is not None:
                accelerated.clip_grad_norm_(accelerated.max_grad_norm)
        if loop.step >= step.number:
            log.write("counted", step)


def _catch_up(scheduler: Any, step: int) -> None:
    """Steps a scheduler after each step that counts, which a step in flight may not."""
    while scheduler is not None and scheduler.last_epoch < step:
        scheduler.step()


def _stand(step: Step, spec: ElasticSpec, log: StepsLog) -> None:
    """Lets the one that is to be killed stand still in the middle of a step until then."""
    is_victim = step.number == spec.kill_step and step.rank == spec.victim
    if not is_victim or spec.killed.exists():
        return
    log.write("stands", step)
    end_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end_s and not spec.killed.exists():
        time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main())
