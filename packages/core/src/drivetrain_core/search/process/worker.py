"""One rank of a trial: builds the program under a plan, observes and measures it.

Run as `python -m drivetrain_core.search.process.worker SPEC RANK FD PARENT`. It answers on the
socket FD: first what it observed, then a measurement for every command. Whatever
fails is sent as `{"event": "failed", ...}`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import resource
import signal
import socket
import statistics
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_core._fork_server import die_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drivetrain_core._accelerated import Accelerated
    from drivetrain_core._program import Program
    from drivetrain_core.search.numerics.observation import Observation
    from drivetrain_core.search.process.payload import Payload

__all__ = ["be_taken_first", "main"]

# A program that was looked at has run already.
_WARM_S = 0.1


class _Outrun(Exception):  # noqa: N818
    """The steps that were observed are slower than those of the best plan for sure."""

    def __init__(self, step_times_s: Sequence[float]) -> None:
        super().__init__()
        self.step_times_s = tuple(step_times_s)


def main(argv: list[str]) -> int:
    """Runs one rank; returns the exit code."""
    started = time.perf_counter()
    spec_path, rank, descriptor, parent = argv[0], int(argv[1]), int(argv[2]), argv[3]
    die_with(int(parent))
    be_taken_first()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    channel = socket.socket(fileno=descriptor)
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    sys.path[:] = spec["import_path"]

    def serve(payload: Payload, program: Program) -> int:
        return _reported(
            lambda: _run(spec, payload, program, rank, started, channel), rank, channel
        )

    def run() -> Iterator[dict[str, Any]]:
        from drivetrain_core.search.process.payload import read_payload, with_program

        _limit_memory(spec["memory_limit_bytes"])
        code = with_program(read_payload(spec["payload"]), serve)
        if code:
            sys.exit(code)
        yield from ()

    return _reported(run, rank, channel)


def _reported(
    run: Callable[[], Iterator[dict[str, Any]]], rank: int, channel: socket.socket
) -> int:
    """Sends what a run yields, or what it raises; returns the exit code."""
    try:
        for answer in run():
            _tell(channel, answer)
    except SystemExit as left:
        # The user's script may end in a word, which Python prints.
        if isinstance(left.code, str):
            sys.stderr.write(f"{left.code}\n")
            return 1
        return left.code or 0
    except BaseException as error:  # noqa: BLE001
        # Whatever the user's program raises is reported.
        with contextlib.suppress(OSError):
            _tell(channel, _failure(error, rank))
        traceback.print_exc()
        return 1
    return 0


def _tell(channel: socket.socket, answer: dict[str, Any]) -> None:
    channel.sendall(json.dumps(answer).encode() + b"\n")


def be_taken_first() -> None:
    """Makes the kernel take this process, and not the user's, when memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _limit_memory(limit_bytes: int | None) -> None:
    if limit_bytes:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))


def _failure(error: BaseException, rank: int) -> dict[str, Any]:
    # To tell what happened takes memory as well.
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    text = str(error)
    # The CPU allocator raises a plain RuntimeError; an import may wrap what it met.
    kinds = ("MemoryError", "OutOfMemoryError")
    memory = any(type(cause).__name__ in kinds for cause in causes)
    memory = memory or "can't allocate memory" in text or "out of memory" in text
    return {
        "event": "failed",
        "rank": rank,
        "kind": "memory" if memory else "error",
        "type": type(error).__name__,
        "message": text[:2000],
        "traceback": traceback.format_exc()[-4000:],
    }


def _run(
    spec: dict[str, Any],
    payload: Payload,
    program: Program,
    rank: int,
    started: float,
    channel: socket.socket,
) -> Iterator[dict[str, Any]]:
    import dataclasses

    import torch

    from drivetrain_core import _meters
    from drivetrain_core._build import build
    from drivetrain_core._context import WorldFacts
    from drivetrain_core._cycle import guard_batches
    from drivetrain_core._optimizer_source import OptimizerSource
    from drivetrain_core._plan import Plan
    from drivetrain_core.parallel.agreed_plan import agreed_plan
    from drivetrain_core.parallel.resolve import asks_for_mesh
    from drivetrain_core.search.numerics.observe import passes_seconds

    world = spec["world_size"]
    device = torch.device(payload.device_type)
    if device.type != "cpu":
        device = torch.device(device.type, rank % torch.accelerator.device_count())
        torch.accelerator.set_device_index(device.index)
        _wait_for_memory(device)
    if payload.context.device.num_threads and device.type == "cpu":
        torch.set_num_threads(payload.context.device.num_threads)
    if world > 1 and not torch.distributed.is_initialized():
        _join(spec, rank, device)
    context = dataclasses.replace(
        payload.context,
        world=WorldFacts(size=world, rank=rank, local_size=world),
    )
    program = _for_rank(program, context.loop.loader, rank)
    torch.manual_seed(program.seed)
    model = program.build_model()
    source = OptimizerSource.of(program.optimizer, model)
    plan = Plan.from_dict(spec["plan"])
    parallel = None
    if asks_for_mesh(plan.choices):
        first = (payload.guard_batches or guard_batches(program.data))[0]
        parallel = agreed_plan(program, model, first, plan.choices, context.world)
    accelerated = build(program, model, source, plan, context, device, parallel)
    _meters.reset_peak_memory(device)

    def told(seconds: float) -> None:
        # A process that answers pass after pass does not hang.
        _tell(channel, {"event": "pass", "seconds": seconds})

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
            "peak_memory_bytes": _meters.peak_memory_bytes(device),
        }
        return
    now = time.perf_counter()
    batches = seen.batches
    yield {
        "event": "ready",
        "observation": seen.observation and seen.observation.to_dict(),
        "setup_s": max(0.0, now - started - passes_seconds(seen.passes_s)),
        "flops": seen.flops and seen.flops * world,
        "step_s": min(seen.passes_s),
    }
    for line in channel.makefile("rb"):
        command = json.loads(line)
        if world > 1:
            # Every rank must take the same number of steps.
            command["min_seconds"], command["max_steps"] = 0.0, command["min_steps"]
        measured = _meters.measure_steps(accelerated, batches, **command)
        yield {"event": "measured", "measurement": measured.to_dict()}


def _has_short_passes(passes_s: Sequence[float]) -> bool:
    """Returns whether one more warm step costs little; the same on every rank."""
    from drivetrain_core.search.numerics.checksum import gathered

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
    from drivetrain_core import _meters
    from drivetrain_core._cycle import cycle, guard_batches
    from drivetrain_core.search.numerics.checksum import gathered
    from drivetrain_core.search.numerics.draw import draw, is_repeatable
    from drivetrain_core.search.numerics.observe import (
        TRAJECTORY_STEPS,
        nudge,
        observe,
        timed_passes,
    )
    from drivetrain_core.search.stopping import is_outrun

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
    with timed_passes(accelerated, told) as times:
        observation = observe(
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
            flops = _meters.count_flops(accelerated, parts[0])
    return _Seen(observation, drawn, flops, times)


def _warmed(
    accelerated: Accelerated, num_steps: int, told: Callable[[float], None]
) -> _Seen:
    """Trains for the first steps of a program that is not looked at."""
    from drivetrain_core._cycle import cycle
    from drivetrain_core.search.numerics.observe import timed_passes

    batches = iter(cycle(accelerated.loader))
    with timed_passes(accelerated, told) as times:
        for _ in range(num_steps):
            accelerated.train_step(next(batches))
    return _Seen(None, batches, None, times)


def _wait_for_memory(device: Any) -> None:
    """Waits until the memory of a trial that was killed just now is free again."""
    import torch

    if device.type != "cuda":
        return
    before = -1
    for _ in range(20):
        free, _ = torch.cuda.mem_get_info(device)
        if free <= before:
            return
        before = free
        time.sleep(0.1)


def _join(spec: dict[str, Any], rank: int, device: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
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
    from drivetrain_core._batch import batch_size, move_batch, split_batch
    from drivetrain_core.services.batch_plan import BatchPlan

    size = batch_size(batch)
    world, rank = accelerated.data_size, accelerated.data_rank
    plan = BatchPlan(world_size=world, global_batch=size, num_micro_batches=1)
    sizes = [sum(plan.for_rank(other).sizes) for other in range(world)]
    return move_batch(split_batch(batch, sizes)[rank], device)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
