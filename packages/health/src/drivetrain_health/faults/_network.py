"""Nodes with a network between them that can be cut, in part or in one direction."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from drivetrain_core import ProgramError
from drivetrain_health.faults._namespaces import Namespace
from drivetrain_health.faults._ongoing import Ongoing
from drivetrain_health.faults._privileges import require

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from typing import Self

_SUBNET = "10.87.0"
_MOST_NODES = 100
# Of a device that there is not: what is sent to it reaches nobody.
_NOWHERE = "02:00:00:00:ff:ff"
_BURST_BYTES = 64 << 10
_LEAST_QUEUE_BYTES = 256 << 10
_QUEUE_S = 0.1


class Network:
    """Nodes that reach each other over one switch; a context manager.

    A node is a network namespace of this machine, with a loopback of its own and an
    `eth0` that leads to the switch, a bridge. Nodes see the same files and processes.
    They reach nothing else, and have no name service. Cuts and limits may be made in any
    thread, for `Chaos` too: `acts={"cut": lambda node, _: network.cut(node)}`.

    What is cut off vanishes without an answer, as behind a broken switch: connections
    stay open, and wait. It is done by the hardware addresses under which a node knows
    the others, so that each direction of each pair can be cut alone. Broadcasts pass.

    Args:
        num_nodes: How many there are, at most 100.

    Raises:
        MissingPrivilegeError: This process may make none: see `missing_because`.
        ProgramError: The number is out of range.

    Example:
        >>> from drivetrain_health.faults import missing_because
        >>> if not missing_because("network"):
        ...     with Network(2) as network:
        ...         with network.partition([0], [1]):
        ...             pass  # what nodes 0 and 1 send to each other vanishes
        ...         node = network.start(0, ["true"])
        ...         assert node.wait() == 0
    """

    def __init__(self, num_nodes: int) -> None:
        """Makes the nodes and the switch."""
        if not 1 <= num_nodes <= _MOST_NODES:
            message = f"a network has 1 to {_MOST_NODES} nodes, got {num_nodes}"
            raise ProgramError(message)
        require("network")
        self._nodes: list[Namespace] = []
        self._started: list[list[subprocess.Popen[Any]]] = []
        # How many cuts there are of each direction of each pair.
        self._cuts: Counter[tuple[int, int]] = Counter()
        self._shaped: set[int] = set()
        self._lock = threading.Lock()
        with ExitStack() as stack:
            self._switch = Namespace()
            stack.callback(self._switch.close)
            lines = ["link add bridge type bridge", "link set bridge up"]
            self._switch.configure("ip", lines)
            for node in range(num_nodes):
                namespace = Namespace()
                stack.callback(namespace.close)
                self._nodes.append(namespace)
                self._started.append([])
                self._wire(node)
                stack.callback(self.kill, node)
            everybody = range(num_nodes)
            self._tell({(a, b) for a in everybody for b in everybody if a != b})
            self._stack = stack.pop_all()

    def _wire(self, node: int) -> None:
        """Gives a node its devices, without addresses of IPv6."""
        peer = f"type veth peer name port{node} netns {self._switch.path}"
        self._nodes[node].configure(
            "ip",
            [
                "link set lo up",
                f"link add eth0 address {_hardware(node)} {peer}",
                f"addr add {self.address(node)}/24 dev eth0",
                "link set eth0 addrgenmode none up",
            ],
        )
        port = f"link set port{node} master bridge addrgenmode none up"
        self._switch.configure("ip", [port])

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return len(self._nodes)

    def address(self, node: int) -> str:
        """Returns the IPv4 address of a node."""
        return f"{_SUBNET}.{node + 1}"

    def start(
        self, node: int, command: Sequence[str], **options: Any
    ) -> subprocess.Popen[Any]:
        """Starts a process on a node.

        Args:
            node: Its number, from 0.
            command: What is run.
            options: Those of `subprocess.Popen`.

        Returns:
            The process. It is killed when the network is closed, with all that it has
            started, daemons too.

        Raises:
            ProgramError: There is no such node.
        """
        with self.entered(node):
            process = subprocess.Popen(command, **options)
        self._started[node].append(process)
        return process

    @contextmanager
    def entered(self, node: int) -> Iterator[None]:
        """Puts this thread into a node while a block runs.

        Sockets that are made in the block belong to the node for ever; so do threads
        and processes that are started in it. Other threads notice nothing.

        Args:
            node: Its number, from 0.

        Raises:
            ProgramError: There is no such node.
        """
        with self._namespace(node).entered():
            yield

    def cut(self, node: int) -> Ongoing:
        """Cuts a node off from all others, in both directions.

        Args:
            node: Its number, from 0.

        Returns:
            The cut, to be healed.

        Raises:
            ProgramError: There is no such node.
        """
        return self.partition([node], set(range(self.num_nodes)) - {node})

    def partition(
        self, ones: Collection[int], others: Collection[int], *, one_way: bool = False
    ) -> Ongoing:
        """Cuts two groups of nodes off from each other.

        Cuts may overlap: what two of them cut is healed when both are.

        Args:
            ones: The numbers of some nodes.
            others: Those of others.
            one_way: Whether what the others send to the ones still arrives.

        Returns:
            The cut, to be healed.

        Raises:
            ProgramError: There is no such node, or one is in both groups.
        """
        both = set(ones) & set(others)
        if both:
            message = f"nodes {sorted(both)} are on both sides of a cut"
            raise ProgramError(message)
        for node in (*ones, *others):
            self._namespace(node)
        pairs = {(one, other) for one in ones for other in others}
        if not one_way:
            pairs |= {(other, one) for one, other in pairs}
        with self._lock:
            self._cuts.update(pairs)
            self._tell(pairs)
        return Ongoing(lambda: self._mend(pairs))

    def shape(self, node: int, rate_mbit_per_s: float) -> Ongoing:
        """Gives the link of a node a rate, each way.

        Args:
            node: Its number, from 0.
            rate_mbit_per_s: The rate, in Mbit/s.

        Returns:
            The limit, to be healed.

        Raises:
            ProgramError: There is no such node, it has a limit already, or the rate is
                not positive.
        """
        namespace = self._namespace(node)
        if not rate_mbit_per_s > 0:
            message = f"a rate must be over 0 Mbit/s, got {rate_mbit_per_s}"
            raise ProgramError(message)
        queue_bytes = max(_LEAST_QUEUE_BYTES, round(rate_mbit_per_s * 125e3 * _QUEUE_S))
        bucket = (
            f"tbf rate {round(rate_mbit_per_s * 1e6)}bit burst {_BURST_BYTES} "
            f"limit {queue_bytes}"
        )
        ends = ((namespace, "eth0"), (self._switch, f"port{node}"))
        with self._lock:
            if node in self._shaped:
                message = f"node {node} has a limit already: heal that first"
                raise ProgramError(message)
            for where, device in ends:
                where.configure("tc", [f"qdisc replace dev {device} root {bucket}"])
            self._shaped.add(node)

        def undo() -> None:
            with self._lock:
                self._shaped.discard(node)
                for where, device in ends:
                    where.configure("tc", [f"qdisc del dev {device} root"])

        return Ongoing(undo)

    def heal(self) -> None:
        """Heals all cuts; limits of rate stay."""
        with self._lock:
            pairs = set(self._cuts)
            self._cuts.clear()
            self._tell(pairs)

    def kill(self, node: int) -> None:
        """Kills all processes of a node, its daemons too.

        Args:
            node: Its number, from 0.

        Raises:
            ProgramError: There is no such node.
        """
        self._namespace(node).kill_processes()
        for process in self._started[node]:
            process.wait()

    def close(self) -> None:
        """Kills what runs on the nodes, and removes them."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _namespace(self, node: int) -> Namespace:
        if not 0 <= node < self.num_nodes:
            message = f"there are nodes 0 to {self.num_nodes - 1}, and no {node}"
            raise ProgramError(message)
        return self._nodes[node]

    def _mend(self, pairs: Collection[tuple[int, int]]) -> None:
        # They may all have been healed at once meanwhile.
        with self._lock:
            self._cuts -= Counter(pairs)
            self._tell(pairs)

    def _tell(self, pairs: Collection[tuple[int, int]]) -> None:
        """Writes down where nodes send what is for others."""
        lines: dict[int, list[str]] = {}
        for here, there in sorted(pairs):
            hardware = _NOWHERE if self._cuts[here, there] else _hardware(there)
            lines.setdefault(here, []).append(
                f"neigh replace {self.address(there)} lladdr {hardware} nud permanent "
                "dev eth0"
            )
        for node, some in lines.items():
            self._nodes[node].configure("ip", some)


def _hardware(node: int) -> str:
    return f"02:00:00:00:00:{node + 1:02x}"
