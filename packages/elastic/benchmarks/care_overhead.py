"""What timers, flight records, beats and counters cost a step of 50 ms, in pairs of steps."""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from drivetrain_elastic._membership._agent_membership import _as_plain
from drivetrain_elastic._observability._flight_record import FlightRecord
from drivetrain_elastic._observability._step_meter import StepMeter
from drivetrain_testing import Row

_STEP_S = 0.05


def care_overhead(quick):
    """Takes turns: a step that is watched, and the same one that is not."""
    torch.set_num_threads(1)
    pairs = 100 if quick else 800
    work = make_work()
    watched, plain = [], []
    with tempfile.TemporaryDirectory() as folder, node_watch() as agent:
        watch = Watch(Path(folder))
        for at in range(pairs):
            # Neighbours in time, and each of them first as often as the other.
            for is_watched in (True, False) if at % 2 else (False, True):
                number = signal.SIGCONT if is_watched else signal.SIGSTOP
                os.kill(agent.pid, number)
                watch.is_on = is_watched
                step = watch.step if is_watched else plain_step
                (watched if is_watched else plain).append(step(work))
        os.kill(agent.pid, signal.SIGCONT)
        watch.close()
    ratios = [a / b - 1 for a, b in zip(watched, plain, strict=True)]
    cost = statistics.median(ratios)
    # Of a median of so many, if they are about normal.
    deviation = 1.4826 * statistics.median(abs(one - cost) for one in ratios)
    error = 1.2533 * deviation / len(ratios) ** 0.5
    return Row(
        figure=f"{cost:+.2%} +- {error:.2%} of a step of "
        f"{statistics.median(plain) * 1e3:.1f} ms, {pairs} pairs",
        holds=cost < 0.005,
        proven_on="cpu-gloo",
    )


def make_work():
    """Returns something that computes for about 50 ms."""
    data = torch.rand(256, 256)

    def work(num):
        for _ in range(num):
            data @ data

    num = 200
    for _ in range(4):
        # The first ones take longer.
        began_s = time.perf_counter()
        work(num)
        num = max(1, round(num * _STEP_S / (time.perf_counter() - began_s)))
    return lambda: work(num)


def plain_step(work):
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


class Watch:
    """What a worker does for those who watch it."""

    def __init__(self, folder):
        self._record = FlightRecord(folder / "flight")
        self._meter = StepMeter(torch.device("cpu"), record=self._record)
        self._meter.find_world()
        self._meter.enter_world(1, 0)
        self._step = 0
        self.is_on = True
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self):
        while not self._is_closed.wait(0.5):
            if self.is_on:
                json.dumps(_as_plain(self._meter.times()))

    def step(self, work):
        meter = self._meter
        began_s = time.perf_counter()
        self._step += 1
        meter.begin_step(self._step)
        with meter.section("data"):
            pass
        work()
        meter.wait()
        meter.apply()
        meter.end_step()
        meter.times()
        return time.perf_counter() - began_s

    def close(self):
        self._is_closed.set()
        self._thread.join()
        self._record.close()


def node_watch():
    """Starts what an agent does for its node: counters, kernel, hardware, traffic."""
    return Closing([sys.executable, str(Path(__file__).resolve()), "watch"])


class Closing(subprocess.Popen):
    """A process that is killed at the end of a block."""

    def __init__(self, command):
        super().__init__(command, stdout=subprocess.PIPE)
        assert self.stdout.readline() == b"watching\n"

    def __exit__(self, *error):
        self.kill()
        super().__exit__(*error)


async def watch():
    """The agent's part, without an agent."""
    from drivetrain_elastic._agent._diagnostician import Diagnostician
    from drivetrain_elastic._agent._node_watch import NodeWatch
    from drivetrain_elastic._agent._output import Output

    diagnostician = Diagnostician("node", tempfile.gettempdir(), Output(None))
    diagnostician.start()
    node = NodeWatch(diagnostician, alert=lambda alert: None, is_training=lambda: True)
    print("watching", flush=True)
    running = asyncio.create_task(node.run())
    while True:
        await asyncio.sleep(0.5)
        node.hardware().SerializeToString()
        assert not running.done()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(watch())
    else:
        print(care_overhead(False).figure)
