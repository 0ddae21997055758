"""An agent that says what a test wants, and how a test looks at its master."""

import queue
import threading
import time

import grpc

from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic.protocol import messages as pb
from drivetrain_elastic.protocol._service import METHODS, credentials

STARTING, READY = pb.WorkerReport.STARTING, pb.WorkerReport.READY
FINISHED, FAILED = pb.WorkerReport.FINISHED, pb.WorkerReport.FAILED


class FakeAgent:
    """An agent that says what a test wants, and keeps what it hears."""

    def __init__(self, master, node="a", workers=(), pid=1, says=(), **terms):
        self.node, self.pid, says = node, pid, dict(says)
        # Time enough for all agents of a test to say what they have.
        self.terms = {"min_workers": 2, "max_workers": 4, "last_call_s": 0.5, "unit": 1}
        self.terms |= terms
        self.heard = queue.Queue()
        self._out = queue.Queue()
        self._channel = grpc.insecure_channel(master.address)
        method = METHODS["Attend"]
        attend = self._channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        terms = pb.Terms(patience_s=self.terms.pop("patience_s", 60), **self.terms)
        hello = pb.Hello(
            node=node,
            host="h",
            pid=pid,
            num_slots=2,
            workers=workers,
            terms=terms,
            **says,
        )
        self._out.put(pb.FromAgent(hello=hello))
        self._call = attend(
            iter(self._out.get, None), metadata=credentials(master.token)
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            for message in self._call:
                self.heard.put(message)
        except grpc.RpcError as error:
            self.heard.put(error)

    def next(self, what, timeout_s=60.0):
        """Returns the next message of a kind; other kinds are left out."""
        while True:
            message = self.heard.get(timeout=timeout_s)
            if isinstance(message, Exception):
                raise message
            if message.WhichOneof("what") == what:
                return getattr(message, what)

    def world(self):
        world = self.next("world")
        return world.epoch, [one.name for one in world.members]

    def report(self, *reports):
        reports = [pb.WorkerReport(name=n, slot=s, **more) for n, s, more in reports]
        self._out.put(pb.FromAgent(workers=pb.WorkerReports(reports=reports)))

    def ready(self, *slots):
        self.report(
            *((f"{self.node}/{slot}", slot, {"state": READY}) for slot in slots)
        )

    def say(self, **what):
        self._out.put(pb.FromAgent(**what))

    def beat(self):
        self.say(heartbeat=pb.Heartbeat())

    def hang_up(self):
        """Breaks the line, as a machine that dies does."""
        self._call.cancel()
        self._channel.close()


def worker(node, slot, state=READY):
    return pb.WorkerReport(name=f"{node}/{slot}", slot=slot, state=state)


def wait_for(master, condition):
    """Waits until the status of a master is as wanted, and returns it."""
    with MasterClient(master.address, master.token) as client:
        while not condition(status := client.call("GetStatus", pb.StatusRequest())):
            time.sleep(0.005)
    return status


def statuses(status, *, by_name=False):
    """Returns what workers are doing."""
    found = {w.name: w.status for node in status.nodes for w in node.workers}
    return found if by_name else set(found.values())


def events_of(master):
    """Returns what has happened, as pairs of kind and subject, with the reason."""
    with MasterClient(master.address, master.token) as client:
        found = client.stream("WatchEvents", pb.EventsRequest(), 10.0)
        return [(one.kind, one.subject, one.reason) for one in found]


def wait_for_event(master, kind, *, alive=()):
    """Waits until something of a kind has happened, and returns its subject and reason.

    Agents that are alive are heard of meanwhile.
    """
    for _ in range(3000):
        for one in alive:
            one.beat()
        for found, subject, reason in events_of(master):
            if found == kind:
                return subject, reason
        time.sleep(0.01)
    raise AssertionError(f"no {kind} among {events_of(master)}")


def call(master, name, request):
    with MasterClient(master.address, master.token) as client:
        return client.call(name, request)


def status_of(master):
    return call(master, "GetStatus", pb.StatusRequest())


def beat_of(node, times, *, number=0, epoch=1, step=10):
    """A heartbeat with a window in which workers take so long to compute."""
    return pb.Heartbeat(
        workers=[
            pb.WorkerProgress(
                name=f"{node}/{slot}",
                step=step,
                step_s=0.1,
                window=pb.SectionWindow(
                    number=number,
                    epoch=epoch,
                    num_steps=10,
                    sections_s={"compute": seconds},
                    step_s=0.2,
                ),
                accounts=[pb.Account(epoch=epoch, last_step=step, steps_s=step * 0.1)],
            )
            for slot, seconds in times.items()
        ]
    )


def say_window(master, agents, beats):
    """Sends a window of each agent; the master has it when this returns.

    A window that comes two later than those of others is left out.
    """
    step = 10 * (beats[0].workers[0].window.number + 1)
    for agent, beat in zip(agents, beats, strict=True):
        for one in beat.workers:
            one.step = step
        agent.say(heartbeat=beat)
    wait_for(
        master,
        lambda s: all(w.step >= step for node in s.nodes for w in node.workers),
    )
