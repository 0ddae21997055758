"""Nodes with a network between them: namespaces on a bridge, with links of a set speed."""

import contextlib
import functools
import itertools
import os
import signal
import subprocess

_NUMBERS = itertools.count()
_SUBNET = "10.213.77"


@functools.cache
def missing_because():
    """Why there can be no network namespaces here, or None."""
    name = f"dt-{os.getpid()}-try"
    try:
        run("ip", "netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be made: {error}"
    try:
        run(*f"ip -n {name} link add one type veth peer name other".split())
        run(*f"tc -n {name} qdisc add dev one root tbf rate 1mbit".split(), *_BURST)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"links cannot be shaped: {error}"
    finally:
        run("ip", "netns", "del", name)
    return None


_BURST = ("burst", "64kb", "latency", "50ms")


def run(*command):
    """Runs a command of the network tools."""
    subprocess.run(command, check=True, capture_output=True, text=True)


class Network:
    """Nodes that reach each other over one bridge; a context manager.

    Args:
        num_nodes: How many nodes there are at first.
        mbit_per_s: The speed of every link, each way.
    """

    def __init__(self, num_nodes, mbit_per_s=400):
        self._mark = f"dt-{os.getpid()}-{next(_NUMBERS)}"
        self._hub = f"{self._mark}-hub"
        self._nodes = []
        self._mbit_per_s = mbit_per_s
        run("ip", "netns", "add", self._hub)
        self._at(self._hub, "link add bridge type bridge")
        self._at(self._hub, "link set bridge up")
        for _ in range(num_nodes):
            self.add_node()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in range(len(self._nodes)):
            self.kill(node)
        for name in (*self._nodes, self._hub):
            with contextlib.suppress(subprocess.CalledProcessError):
                run("ip", "netns", "del", name)

    def add_node(self):
        """Adds a node; returns its number."""
        node = len(self._nodes)
        name = f"{self._mark}-{node}"
        run("ip", "netns", "add", name)
        self._nodes.append(name)
        pair = f"link add eth0 type veth peer name port{node} netns {self._hub}"
        self._at(name, pair)
        self._at(name, f"addr add {self.address(node)}/24 dev eth0")
        for device in ("lo", "eth0"):
            self._at(name, f"link set {device} up")
        self._at(self._hub, f"link set port{node} master bridge up")
        self.shape(node, self._mbit_per_s)
        return node

    def address(self, node):
        """The address of a node."""
        return f"{_SUBNET}.{node + 1}"

    def shape(self, node, mbit_per_s):
        """Sets the speed of a node's link."""
        for name, device in ((self._nodes[node], "eth0"), (self._hub, f"port{node}")):
            rate = ("tbf", "rate", f"{mbit_per_s}mbit", *_BURST)
            run("tc", "-n", name, "qdisc", "replace", "dev", device, "root", *rate)

    def cut(self, node):
        """Pulls the cable of a node."""
        self._at(self._hub, f"link set port{node} down")

    def part(self, one, other):
        """Lets what two nodes send to each other vanish; others reach both."""
        for here, there in ((one, other), (other, one)):
            nowhere = "lladdr 02:00:00:00:00:99 nud permanent dev eth0"
            self._at(
                self._nodes[here], f"neigh replace {self.address(there)} {nowhere}"
            )

    def start(self, node, command, **options):
        """Starts a process on a node; returns its `Popen`."""
        there = ["ip", "netns", "exec", self._nodes[node], *command]
        return subprocess.Popen(there, **options)

    def kill(self, node):
        """Kills all processes of a node, its daemons too."""
        found = subprocess.run(
            ["ip", "netns", "pids", self._nodes[node]],
            check=False,
            capture_output=True,
            text=True,
        )
        for pid in map(int, found.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _at(self, name, words):
        run("ip", "-n", name, *words.split())
