"""Nodes with a network between them: namespaces at one switch, with shaped links."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading

from rig.bridge import Bridge
from rig.delay_line import DelayLine
from rig.namespaces import (
    at,
    kill_processes,
    make_namespace,
    remove_leftovers,
    remove_namespace,
    settings_of,
    start,
    tc,
)
from rig.shape import SEGMENTS_BYTES, Link, node_commands

_NUMBERS = itertools.count()
_SUBNET = "10.213.77"
_MOST_NODES = 64
_HOSTS = {f"{_SUBNET}.{i + 1}": f"node{i}" for i in range(_MOST_NODES)}
_DEFAULT = Link(rate_mbit_per_s=400)


class Network:
    """Nodes that reach each other over one switch; a context manager.

    A node's own device shapes what it sends, and its port of the switch what it gets.
    With a round trip of 0 the switch is a bridge, else a delay line.

    Args:
        num_nodes: How many nodes there are at first.
        link: The link of every node; None leaves them unshaped, without delay.
        rtt_ms: The round trip where there is no link to say it.
    """

    def __init__(self, num_nodes, link=_DEFAULT, *, rtt_ms=0):
        self._mark = f"dt-{os.getpid()}-{next(_NUMBERS)}"
        self._nodes = []
        self._started = []
        self._link = link
        self._rtt_ms = rtt_ms if link is None else link.rtt_ms
        self._stack = contextlib.ExitStack()
        remove_leftovers()
        with self._stack:
            self._stack.enter_context(_ended_by_sigterm())
            self._switch = self._make_switch()
            self._stack.callback(self._switch.close)
            for _ in range(num_nodes):
                self.add_node()
            self._stack = self._stack.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _make_switch(self):
        if self._rtt_ms:
            return DelayLine(self._rtt_ms)
        return Bridge(f"{self._mark}-hub")

    @property
    def num_nodes(self):
        """How many nodes there are, dead ones included."""
        return len(self._nodes)

    def add_node(self):
        """Adds a node; returns its number."""
        node = len(self._nodes)
        if node == _MOST_NODES:
            raise ValueError(f"a network has at most {_MOST_NODES} nodes")
        name = f"{self._mark}-{node}"
        self._stack.callback(remove_namespace, name)
        make_namespace(name, _HOSTS)
        self._nodes.append(name)
        self._started.append([])
        self._stack.callback(self.kill, node)
        self._switch.attach(node, name, self.address(node))
        at(name, f"link set eth0 gso_max_size {SEGMENTS_BYTES} txqueuelen 1000 up")
        if self._link is not None:
            self.shape(node, self._link)
        return node

    def address(self, node):
        """The address of a node."""
        return f"{_SUBNET}.{node + 1}"

    def shape(self, node, link):
        """Gives a node another link, with the same round trip.

        Raises:
            ValueError: The round trip is another one.
        """
        if link.rtt_ms != self._rtt_ms:
            raise ValueError(
                f"the round trip is {self._rtt_ms} ms for a whole network, and "
                f"{link.rtt_ms} ms were asked for"
            )
        tc(self._nodes[node], node_commands(link, "eth0"))
        self._switch.shape(node, link)

    def cut(self, node):
        """Pulls the cable of a node."""
        self._switch.cut(node)

    def part(self, one, other):
        """Lets what two nodes send to each other vanish; others reach both."""
        self._switch.part(one, other)

    def stats(self):
        """What went through the switch so far, where it counts."""
        return self._switch.stats()

    def settings(self, node):
        """The settings of TCP on a node, by name."""
        return settings_of(self._nodes[node])

    def start(self, node, command, **options):
        """Starts a process on a node; returns its `Popen`."""
        process = start(self._nodes[node], f"node{node}", command, **options)
        self._started[node].append(process)
        return process

    def kill(self, node):
        """Kills all processes of a node, its daemons too."""
        # One that was just started may be on its way into the namespace.
        for process in self._started[node]:
            process.kill()
        kill_processes(self._nodes[node])


@contextlib.contextmanager
def _ended_by_sigterm():
    """Makes SIGTERM end the program as Ctrl-C does, so that what is open is closed."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def leave(number, _frame):
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
