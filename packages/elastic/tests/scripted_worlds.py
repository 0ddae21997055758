"""Worlds that a test writes, for processes that have no agent."""

import os
import threading
import time

import torch.distributed as dist

from drivetrain_core.services import TorchProcessGroupFactory
from drivetrain_elastic._seat import Seat


class Worlds:
    """Tells of worlds that somebody writes to a store; one thread asks for the next."""

    def __init__(self, name, connect):
        self.name = name
        self._connect = connect
        self._heard, self.steps = [], []
        self._change = threading.Condition()
        self._listeners = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        store, broken = self._connect(), 0
        for epoch in range(1, 100):
            try:
                text = store.get(f"seats/{epoch}").decode()
            except RuntimeError:
                return  # the store has gone: the test is over
            members, gone = (part.split() for part in text.split("|"))
            rank = members.index(self.name) if self.name in members else -1
            seat = Seat(epoch, rank, tuple(members), ("node",) * len(members))
            broken = epoch - 1 if gone else broken
            seat = seat._replace(broken_epoch=broken)
            with self._change:
                self._heard.append(seat)
                self._change.notify_all()
            for listener in self._listeners:
                listener(seat)

    def latest(self):
        return self._heard[-1] if self._heard else None

    def wait(self, newer_than, timeout_s):
        with self._change:
            self._change.wait_for(
                lambda: self._heard and self._heard[-1].epoch > newer_than, timeout_s
            )
            return self._heard[-1] if self._heard[-1].epoch > newer_than else None

    def subscribe(self, heard):
        self._listeners.append(heard)
        return lambda: self._listeners.remove(heard)

    def end_s(self):
        return float("inf")

    def save_order(self):
        return None

    def report_saved(self, order, step, seconds, failure):
        pass

    def is_leaving(self):
        seat = self.latest()
        return seat is not None and self.has_left(seat)

    def has_left(self, seat):
        return bool(self.steps) and seat.rank < 0

    def report_ready(self):
        pass

    def report_phase(self, phase):
        pass

    def report_step(self, step, seconds):
        self.steps.append((step, time.monotonic()))

    def report_times(self, times):
        pass

    def flight_record(self):
        return None

    def report_broken(self, epoch, reason):
        self._connect().set(f"broken/{self.name}", reason)

    def report_end(self, *, is_finished):
        pass


def connect():
    return dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )


def make_factory():
    return TorchProcessGroupFactory("gloo")


def master(store, script):
    """Writes worlds as workers die, leave and come, in the order of the script."""
    members = [name for name in ("w0", "w1", "w2", "w3") if name in script["first"]]
    epoch = 1
    store.set(f"seats/{epoch}", f"{' '.join(members)}|")
    for what, name in script["events"]:
        store.wait([f"{what}/{name}"])
        if what == "ready":
            members = sorted([*members, name])
        elif what != "broken":
            members.remove(name)
        epoch += 1
        gone = name if what in {"dead", "broken"} else ""
        store.set(f"seats/{epoch}", f"{' '.join(members)}|{gone}")
