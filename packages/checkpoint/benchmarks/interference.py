"""How much a training loop slows down while a save is on its way to the disk.

The loop has one core, and all that persists has another: the daemon, a process of the
method, or its threads in the trainer, which still need the trainer's interpreter lock.
So what is measured is what remains with a core to spare: the lock, the memory's and the
disk's bandwidth, and the caches. `save` itself is not part of it; it stands in the rows
about the stall.
"""

import contextlib
import json
import os
import statistics
import threading
import time
from pathlib import Path

import torch
from methods import method_of
from programs import add_place, ask, parser_of, place_of
from workload import NUM_THREADS, new_place

from drivetrain_testing import Row

_PEERS = ("dcp.async_save, thread", "dcp.async_save, process, kept shared memory")


def slowdown(most):
    """The step rate while persisting, in the rate of the windows between.

    Args:
        most: The bound.
    """

    def measure(quick):
        if len(os.sched_getaffinity(0)) < 2:
            return Row(figure="one core: none to spare", holds=None)
        num_tensors, rounds = (800, 6) if quick else (4_000, 12)
        trials = {"drivetrain-checkpoint": rounds}
        trials |= {_PEERS[0]: 2} if quick else dict.fromkeys(_PEERS, 4)
        lost = {
            name: 1.0 - statistics.median(_rates(name, num_tensors, num))
            for name, num in trials.items()
        }
        ours, *others = lost.items()
        beside = ", ".join(f"{name} {value:.1%}" for name, value in others)
        return Row(
            figure=f"{ours[1]:.1%} slower ({beside})",
            holds=ours[1] <= most,
            details={"lost": lost, "num_tensors": num_tensors},
        )

    return measure


def _rates(name, num_tensors, rounds):
    """The relative rate of each round, in a process of its own."""
    with new_place() as place:
        arguments = (name, place.folder, place.runtime, num_tensors, rounds)
        return ask(place, "interference.py", *arguments)


class Loop:
    """A training loop that spends its time in Python and in small operations."""

    def __init__(self):
        self._weights = [torch.ones(64) for _ in range(50)]
        self._seen = {}

    def step(self):
        for index, weight in enumerate(self._weights):
            weight.add_(0.001)
            self._seen[index] = sum(range(50)) + len(f"{index}:{weight.numel()}")

    def rate(self, is_over):
        """Steps a second until something is over."""
        count, start = 0, time.perf_counter()
        while True:
            for _ in range(5):
                self.step()
            count += 5
            if is_over():
                return count / (time.perf_counter() - start)


def _state(num_tensors):
    """Tensors of 256 KiB: many, since each of them costs some savers Python."""
    return {f"t{i}": torch.ones(1 << 16) for i in range(num_tensors)}


def _cores(place, loop_core, other_core):
    """Gives the calling thread one core, and all else of a measurement the other."""
    me = threading.get_native_id()
    os.sched_setaffinity(me, {loop_core})
    for pid in [os.getpid(), *place.processes()]:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            if int(task.name) != me:
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(task.name), {other_core})


def _trainer(name, place, num_tensors, rounds):
    """Saves again and again, and trains while the save is on its way and after it."""
    torch.set_num_threads(NUM_THREADS)
    cores = sorted(os.sched_getaffinity(0))[:2]
    method = method_of(name)(place, _state(num_tensors))
    loop = Loop()
    found = []
    for step in range(rounds + 1):
        method.save(step)
        if not step:  # the first save also starts what saves
            method.wait()
            continue
        over = threading.Event()

        def watch(over=over):
            method.wait()
            over.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        _cores(place, *cores)
        start = time.perf_counter()
        busy = loop.rate(over.is_set)
        took = time.perf_counter() - start
        watcher.join()
        time.sleep(0.2)
        end = time.perf_counter() + min(max(took, 0.2), 3.0)
        calm = loop.rate(lambda end=end: time.perf_counter() >= end)
        os.sched_setaffinity(threading.get_native_id(), set(cores))
        found.append(busy / calm)
    method.close()
    return found


def _main():
    parser = parser_of(__doc__)
    parser.add_argument("name")
    add_place(parser)
    parser.add_argument("num_tensors", type=int)
    parser.add_argument("rounds", type=int)
    given = parser.parse_args()
    rates = _trainer(given.name, place_of(given), given.num_tensors, given.rounds)
    print(json.dumps(rates))


if __name__ == "__main__":
    _main()
