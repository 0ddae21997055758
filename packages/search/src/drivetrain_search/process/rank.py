"""One rank of a trial: builds the program under a plan, observes and measures it."""

from __future__ import annotations

import copy
import dataclasses
import json
import statistics
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from drivetrain_core import Plan, ProgramError, WorldFacts
from drivetrain_core.accelerators import accelerator_of
from drivetrain_core.extending import (
    OptimizerSource,
    agreed_layout,
    batch_size,
    build,
    cycle,
    guard_batches,
    move_batch,
    probe_model,
    split_batch,
)
from drivetrain_core.mesh_shape import asks_for_mesh
from drivetrain_core.numerics.checksum import gathered
from drivetrain_core.services.batch_plan import BatchPlan
from drivetrain_search.draw import draw, is_repeatable
from drivetrain_search.process import meters
from drivetrain_search.process.channel import tell
from drivetrain_search.process.observation_message import write_observation
from drivetrain_search.process.pace import TRAJECTORY_STEPS
from drivetrain_search.process.trajectory import nudge, observe_trajectory
from drivetrain_search.stopping import is_outrun

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from drivetrain_core import Accelerated, DeviceFacts, ModelFacts
    from drivetrain_core.extending import Program
    from drivetrain_core.numerics.observation import Observation
    from drivetrain_search.process.payload import Payload

# A program that was looked at has run already.
_WARM_S = 0.1


class _Outrun(Exception):  # noqa: N818
    """The steps that were observed are slower than those of the best plan for sure."""

    def __init__(self, step_times_s: Sequence[float]) -> None:
        super().__init__()
        self.step_times_s = tuple(step_times_s)


def run_rank(
    spec: dict[str, Any],
    payload: Payload,
    program: Program,
    rank: int,
    started: float,
    channel: socket.socket,
) -> Iterator[dict[str, Any]]:
    """Yields what a rank answers: what it observed, then a measurement a command.

    Args:
        spec: What the search wrote for all ranks.
        payload: The program's facts, and what it is observed on.
        program: The program.
        rank: Which rank this is.
        started: When the process began, in `time.perf_counter` seconds.
        channel: Where commands come from, and where each pass is told.
    """
    world = spec["world_size"]
    device = torch.device(payload.device)
    if device.type != "cpu":
        device = torch.device(device.type, device_index(device, rank, world))
        torch.accelerator.set_device_index(device.index)
        _wait_for_memory(device)
    if payload.context.device.num_threads and device.type == "cpu":
        torch.set_num_threads(payload.context.device.num_threads)
    if world > 1 and not torch.distributed.is_initialized():
        _join(spec, rank, payload.context.device)
    context = dataclasses.replace(
        payload.context, world=WorldFacts(size=world, rank=rank, local_size=world)
    )
    program = _for_rank(program, context.loop.loader, rank)
    torch.manual_seed(program.seed)
    model = program.build_model()
    if _size(probe_model(model)) != _size(context.model):
        message = (
            "a trial builds another model than this process has: the function that "
            "builds it reads what was set in this process, such as a variable of a "
            "module; pass it as arguments, or search from a script with ship='replay'"
        )
        raise ProgramError(message)
    source = OptimizerSource.of(program.optimizer, model)
    plan = Plan.from_dict(spec["plan"])
    layout = None
    if asks_for_mesh(plan.choices):
        first = (payload.guard_batches or guard_batches(program.data))[0]
        layout = agreed_layout(program, model, first, plan.choices, context.world)
    accelerated = build(program, model, source, plan, context, device, layout)
    meters.reset_peak_memory(device)

    def told(seconds: float) -> None:
        # A process that answers pass after pass does not hang.
        tell(channel, {"event": "pass", "seconds": seconds})

    try:
        if spec["look"] is not None:
            seen = _observed(spec, payload, program, accelerated, told)
            if _has_short_passes(seen.passes_s):
                accelerated.train_step(next(seen.batches))
        else:
            seen = _warmed(accelerated, spec["warm_steps"], told)
    except _Outrun as outrun:
        yield {
            "event": "outrun",
            "step_times_s": outrun.step_times_s,
            "peak_memory_bytes": meters.peak_memory_bytes(device),
        }
        return
    now = time.perf_counter()
    batches = seen.batches
    _start_again_past_end(accelerated.scheduler)
    yield {
        "event": "ready",
        "observation": seen.observation and write_observation(seen.observation),
        "setup_s": max(0.0, now - started - meters.passes_seconds(seen.passes_s)),
        "flops": seen.flops and seen.flops * world,
        "step_s": min(seen.passes_s),
    }
    for line in channel.makefile("rb"):
        command = json.loads(line)
        if world > 1:
            # Every rank must take the same number of steps.
            command["min_seconds"], command["max_steps"] = 0.0, command["min_steps"]
        measured = meters.measure_steps(accelerated, batches, **command)
        yield {"event": "measured", "measurement": measured.to_dict()}


def _size(model: ModelFacts) -> tuple[Any, ...]:
    # Classes that were pickled by value may have lost their full names.
    return model.num_parameters, model.parameter_bytes, model.dtypes


def _start_again_past_end(scheduler: Any) -> None:
    """Lets a schedule of so many steps begin anew: a trial may make more of them."""
    if scheduler is None:
        return
    start, step = copy.deepcopy(scheduler.state_dict()), scheduler.step

    def again(*args: Any) -> None:
        try:
            step(*args)
        except Exception:  # noqa: BLE001
            # Past its end a schedule may raise anything; at its start it may not.
            scheduler.load_state_dict(copy.deepcopy(start))
            step(*args)

    scheduler.step = again


def _has_short_passes(passes_s: Sequence[float]) -> bool:
    """Returns whether one more warm step costs little; the same on every rank."""
    return bool(max(gathered(statistics.median(passes_s))) <= _WARM_S)


class _Seen(NamedTuple):
    """What was seen of a program that was looked at.

    Attributes:
        observation: How it behaved; None if it was not looked at.
        batches: What it trains on from there.
        flops: Floating-point operations of a step of this rank; of the baseline alone.
        passes_s: Seconds of each of the passes for that.
    """

    observation: Observation | None
    batches: Iterator[Any]
    flops: int | None
    passes_s: Sequence[float]


def _observed(
    spec: dict[str, Any],
    payload: Payload,
    program: Program,
    accelerated: Accelerated,
    told: Callable[[float], None],
) -> _Seen:
    device, baseline = accelerated.device, spec["baseline"]
    world = accelerated.context.world.size
    batches = payload.guard_batches or guard_batches(program.data)
    parts = [_rank_part(batch, accelerated, device) for batch in batches]
    repeatable = baseline and is_repeatable(
        accelerated.loader, program.data, seed=program.seed
    )
    drawn = iter(cycle(accelerated.loader))
    look, flops = spec["look"], None
    until_s, bound_s = look["until_s"], look["outrun_above_s"]

    def watch(steps_s: Sequence[float]) -> None:
        # The first step compiles and warms up.
        if bound_s is not None and is_outrun(steps_s[1:], bound_s, look["noise"]):
            raise _Outrun(steps_s[1:])

    if look["nudges"]:
        nudge(accelerated)
    with meters.timed_passes(accelerated, told) as times:
        observation = observe_trajectory(
            accelerated,
            parts,
            seed=program.seed,
            noise=baseline,
            num_steps=TRAJECTORY_STEPS if baseline else look["steps"],
            drawn=draw(drawn, seed=program.seed, copies=world // accelerated.data_size),
            is_repeatable=repeatable,
            until_s=until_s if baseline else None,
            watch=watch,
        )
        late = until_s is not None and max(gathered(time.monotonic())) > until_s
        if baseline and not late:
            flops = meters.count_flops(accelerated, parts[0])
    return _Seen(observation, drawn, flops, times)


def _warmed(
    accelerated: Accelerated, num_steps: int, told: Callable[[float], None]
) -> _Seen:
    """Trains for the first steps of a program that is not looked at."""
    batches = iter(cycle(accelerated.loader))
    with meters.timed_passes(accelerated, told) as times:
        for _ in range(num_steps):
            accelerated.train_step(next(batches))
    return _Seen(None, batches, None, times)


def device_index(device: torch.device, rank: int, world_size: int) -> int:
    """Returns which accelerator a rank of a trial uses.

    Args:
        device: What the user trains on.
        rank: Which rank it is.
        world_size: One alone trains where the user does, each of several on its own.
    """
    if world_size == 1 and device.index is not None:
        return device.index
    return rank % torch.accelerator.device_count()


def _wait_for_memory(device: Any) -> None:
    """Waits until the memory of a trial that was killed just now is free again."""
    accelerator = accelerator_of(device)
    before = -1
    for _ in range(20):
        memory = accelerator.memory(device.index or 0)
        if memory is None or memory[0] <= before:
            return
        before = memory[0]
        time.sleep(0.1)


def _join(spec: dict[str, Any], rank: int, facts: DeviceFacts) -> None:
    on_cpu = facts.type == "cpu" or facts.collectives is None
    dist.init_process_group(
        # As in the program itself, which may reduce what lies on the CPU.
        "gloo" if on_cpu else f"cpu:gloo,{facts.type}:{facts.collectives}",
        init_method=f"file://{spec['store']}",
        rank=rank,
        world_size=spec["world_size"],
        # Shorter than the trial's own limit, so that the cause can still be told.
        timeout=timedelta(seconds=max(5.0, spec["timeout_s"] * 0.8)),
    )


def _for_rank(program: Any, kind: str, rank: int) -> Any:
    if kind == "sharded":
        # The loader was pickled by rank 0; its sampler must draw this rank's part.
        program.data.sampler.rank = rank
    return program


def _rank_part(batch: Any, accelerated: Accelerated, device: Any) -> Any:
    size = batch_size(batch)
    world, rank = accelerated.data_size, accelerated.data_rank
    plan = BatchPlan(world_size=world, global_batch=size, num_micro_batches=1)
    sizes = [sum(plan.for_rank(other).sizes) for other in range(world)]
    return move_batch(split_batch(batch, sizes)[rank], device)
