"""Measures what the simulated accelerator costs, and that what is queued overlaps.

It needs the built library; a program that is not run with `SIMULATED_ACCELERATOR` set loads
it by itself.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ["SIMULATED_ACCELERATOR"] = "devices=2,memory=1GiB"

import torch
from drivetrain_simulated_accelerator import control

from drivetrain_testing import Bar, Row, run_bars, slow

ON = "simulated-accelerator"
NUM_ELEMENTS = 1 << 12
MOST_OVERLAP, MOST_ISSUE = 1.35, 0.05
MOST_OP_US, MOST_WAIT_US, MOST_STEP = 30.0, 50.0, 1.5
MOST_COLD_S, MOST_CACHED_S = 180.0, 15.0
NUM_LOSSES, MOST_LOST_S, MOST_EXIT_S = 20, 1.0, 5.0
LIMIT_BYTES = 1 << 30
MOST_GROWTH = 0.1
LOST = """
import threading, torch
from drivetrain_simulated_accelerator import control
x = torch.ones(64, 64, device="sim")
threading.Timer({after}, control.lose, (0,)).start()
try:
    while True:
        x = x @ x / 64
        torch.sim.synchronize()
except torch.AcceleratorError:
    print("lost", flush=True)
"""


def seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def each_us(run: Callable[[], object], number: int, rounds: int = 9) -> float:
    """Returns the median over rounds of the microseconds of one call."""

    def one_round() -> None:
        for _ in range(number):
            run()

    times = []
    for _ in range(rounds):
        torch.sim.synchronize()
        times.append(seconds(one_round) / number)
        torch.sim.synchronize()
    return statistics.median(times) * 1e6


def overlap(quick: bool) -> Row:
    """Copies for 20 ms beside ten ops of 2 ms, on two streams."""
    side = torch.sim.Stream()
    target = torch.empty(NUM_ELEMENTS).pin_memory()
    x, y = (torch.ones(NUM_ELEMENTS, device="sim") for _ in range(2))
    issued, whole = [], []

    def issue() -> None:
        with torch.sim.stream(side):
            target.copy_(x, non_blocking=True)
        for _ in range(10):
            y.add_(1)

    issue()
    for _ in range(5 if quick else 15):
        torch.sim.synchronize()
        with control.delays(op_us=2000, copy_us=20_000):
            begin = time.perf_counter()
            issued.append(seconds(issue))
            torch.sim.synchronize()
            whole.append(time.perf_counter() - begin)
    ratio = statistics.median(whole) / 0.02
    share = statistics.median(issued) / statistics.median(whole)
    return Row(
        figure=f"{ratio:.2f} x the longer of both, issued in {share:.1%} of it",
        holds=ratio <= MOST_OVERLAP and share <= MOST_ISSUE,
        proven_on=ON,
    )


def save_overlap(quick: bool) -> Row:
    """Trains while an overlapped save copies the state of a step."""
    from drivetrain_checkpoint import Checkpointer

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(8, 64, device="sim")
    copy_s = 0.05

    def step(saver: Checkpointer) -> None:
        model(x).square().mean().backward()
        with saver.guard():
            optimizer.step()
        optimizer.zero_grad()
        torch.sim.synchronize()

    alone, beside = [], []
    with tempfile.TemporaryDirectory() as folder:
        saver = Checkpointer(folder, job="bars", overlap=True)
        state = {"model": model}
        step(saver)
        saver.save(0, state).wait(60)
        for number in range(1, 4 if quick else 10):
            with control.delays(op_us=2000):
                alone.append(seconds(partial(step, saver)))
            # Together as long as a forward and a backward pass.
            with control.delays(op_us=2000, copy_us=round(copy_s / 8 * 1e6)):
                handle = saver.save(number, state)
                beside.append(seconds(partial(step, saver)))
                handle.wait(60)
        saver.stop_daemon()
    growth = (statistics.median(beside) - statistics.median(alone)) / copy_s
    return Row(
        figure=f"a step takes {growth:.1%} of the copies' time longer",
        holds=growth <= MOST_GROWTH,
        proven_on=ON,
    )


def memory_limit(quick: bool) -> Row:
    """Takes more than the device has, less than it has, and trains without a leak."""
    del quick
    torch.sim.empty_cache()
    raised = False
    try:
        torch.empty(LIMIT_BYTES + 1, dtype=torch.uint8, device="sim")
    except torch.OutOfMemoryError:
        raised = True
    smaller = torch.empty(LIMIT_BYTES // 2, dtype=torch.uint8, device="sim")
    del smaller
    torch.sim.empty_cache()
    model = torch.nn.Linear(64, 64).to("sim")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(8, 64, device="sim")
    held = []
    for _ in range(200):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.sim.synchronize()
        held.append(torch.accelerator.memory_allocated())
    peak = torch.accelerator.max_memory_allocated()
    leaked = held[-1] - held[1]
    return Row(
        figure=f"refused beyond 1 GiB: {raised}; 200 steps leak {leaked} bytes",
        holds=raised and leaked == 0 and peak <= LIMIT_BYTES,
        proven_on=ON,
    )


def device_lost(quick: bool) -> Row:
    """Loses the device at random points of a step."""
    at = random.Random(5)
    late, ended = [], []
    for _ in range(5 if quick else NUM_LOSSES):
        x = torch.ones(64, 64, device="sim")
        lost_at: list[float] = []

        def lose(lost_at: list[float] = lost_at) -> None:
            lost_at.append(time.perf_counter())
            control.lose(0)

        threading.Timer(at.uniform(0.0, 0.05), lose).start()
        try:
            while True:
                x = x @ x / 64
                torch.sim.synchronize()
        except torch.AcceleratorError:
            late.append(time.perf_counter() - lost_at[0])
        del x
        control.restore(0)
    for _ in range(1 if quick else 3):
        program = LOST.format(after=at.uniform(0.0, 0.05))
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "lost\n"
            ended.append(seconds(partial(process.wait, 60)))
            assert process.returncode == 0
    return Row(
        figure=f"told within {max(late):.3f} s at {len(late)} points, "
        f"a process ends {max(ended):.1f} s later",
        holds=max(late) <= MOST_LOST_S and max(ended) <= MOST_EXIT_S,
        proven_on=ON,
    )


def tiny_op(quick: bool) -> Row:
    """Times an op of a few elements: a view, one that is queued, and one waited for."""
    number = 200 if quick else 1000
    x = torch.ones(16, device="sim")

    def waited() -> None:
        x.add_(1)
        torch.sim.synchronize()

    view_us = each_us(lambda: x.view(4, 4), number)
    # Fewer than a queue holds, which would be waited for.
    queued_us = each_us(lambda: x.add_(1), 100)
    waited_us = each_us(waited, number)
    cpu = torch.ones(16)
    cpu_us = each_us(lambda: cpu.add_(1), number)
    return Row(
        figure=f"a view {view_us:.1f} us, queued {queued_us:.1f} us, waited for "
        f"{waited_us:.1f} us; on the CPU {cpu_us:.1f} us",
        holds=max(view_us, queued_us) <= MOST_OP_US and waited_us <= MOST_WAIT_US,
        proven_on=ON,
    )


def step_cost(quick: bool) -> Row:
    """Trains a small encoder there and on the CPU, in turn."""
    steps = {}
    for device in ("cpu", "sim"):
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(128, 4, 256, 0.0, batch_first=True)
        model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        model = model.to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.ones(4, 32, 128, device=device)

        def step(model=model, optimizer=optimizer, x=x) -> None:  # type: ignore[no-untyped-def]
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.sim.synchronize()

        steps[device] = step
    times: dict[str, list[float]] = {device: [] for device in steps}
    for _ in range(10 if quick else 40):
        for device, one in steps.items():
            times[device].append(seconds(one))
    took = {device: statistics.median(found[2:]) for device, found in times.items()}
    ratio = took["sim"] / took["cpu"]
    return Row(
        figure=f"{ratio:.2f} x the CPU's {took['cpu'] * 1e3:.1f} ms",
        holds=ratio <= MOST_STEP,
        proven_on=ON,
    )


def build_s(folder: str) -> float:
    words = [sys.executable, "-m", "drivetrain_simulated_accelerator", "build"]
    name = "DRIVETRAIN_SIMULATED_ACCELERATOR_CACHE"
    environment = {**os.environ, name: folder}
    del environment["SIMULATED_ACCELERATOR"]
    build = partial(subprocess.run, words, env=environment, check=True)
    return seconds(partial(build, stdout=subprocess.DEVNULL))


@slow
def build(quick: bool) -> Row:
    """Builds the library from nothing, and finds it again."""
    del quick
    with tempfile.TemporaryDirectory() as folder:
        cold_s, cached_s = build_s(str(Path(folder, "cache"))), 0.0
        cached_s = build_s(str(Path(folder, "cache")))
    return Row(
        figure=f"{cold_s:.0f} s, found again in {cached_s:.1f} s",
        holds=cold_s <= MOST_COLD_S and cached_s <= MOST_CACHED_S,
    )


TABLE = [
    ("copy-beside-ops", "<= 1.35 x the longer, issued in <= 5%", overlap),
    ("save-beside-a-step", "<= 10% of the copies' time", save_overlap),
    ("memory-limit", "refused, no leak", memory_limit),
    ("device-lost", "told in <= 1 s, ends in <= 5 s", device_lost),
    ("tiny-op", "<= 30 us, waited for <= 50 us", tiny_op),
    ("step-cost", "<= 1.5 x the CPU's", step_cost),
    ("build", "<= 180 s, cached <= 15 s", build),
]

BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
