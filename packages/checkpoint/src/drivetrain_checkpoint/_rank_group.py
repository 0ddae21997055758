"""Rank group: the ranks that save together, their collectives, and their nodes."""

from __future__ import annotations

import os
import secrets
import socket
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist

from drivetrain_checkpoint._peers.nodes import Node, NodeTable
from drivetrain_core import CheckpointError
from drivetrain_core.services import new_local_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_checkpoint._daemon.client import Client

_Result = TypeVar("_Result")


class Rendezvous(NamedTuple):
    """What the ranks know of each other.

    Args:
        nodes: The nodes that they run on.
        secret: What the daemons of these nodes know, and nobody else.
        run: What this run of the job is called.
    """

    nodes: NodeTable
    secret: str
    run: str


class RankGroup:
    """The ranks of a process group; a single process is a group of one.

    Args:
        group: The group; the default one by default. `self` is this process alone.

    Raises:
        ValueError: It is another word.
    """

    def __init__(self, group: dist.ProcessGroup | str | None = None) -> None:
        """Asks nothing of the group yet."""
        if isinstance(group, str) and group != "self":
            message = f"process_group must be a group or 'self', got {group!r}"
            raise ValueError(message)
        self._is_alone = group == "self"
        self.process_group = None if isinstance(group, str) else group
        self._subgroups: dict[tuple[int, ...], Any] = {}

    @property
    def rank(self) -> int:
        """This process's rank in the group."""
        return 0 if self._has_nobody() else dist.get_rank(self.process_group)

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return 1 if self._has_nobody() else dist.get_world_size(self.process_group)

    def all_gather(self, value: object) -> list[Any]:
        """Returns what every rank gives, in the order of ranks; all call it."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._host_group())
        return values

    def run_on_all(self, work: Callable[[], _Result]) -> _Result:
        """Returns what something gives here, if it raises on no rank; all call it.

        Raises:
            CheckpointError: It has raised elsewhere. Here it raises what it raised.
        """
        found: _Result | None = None
        problem: Exception | None = None
        try:
            found = work()
        # Whatever one rank fails at, the others must not wait for it.
        except Exception as error:  # noqa: BLE001
            problem = error
        said = "" if problem is None else str(problem) or type(problem).__name__
        for rank, text in enumerate(self.all_gather(said)):
            if text:
                raise problem or CheckpointError(f"rank {rank}: {text}")
        return cast("_Result", found)

    def broadcast(self, value: object, source: int) -> Any:
        """Returns what one rank gives; all call it."""
        if self.world_size == 1:
            return value
        values = [value]
        root = self.global_rank(source)
        dist.broadcast_object_list(values, src=root, group=self._host_group())
        return values[0]

    def global_rank(self, rank: int) -> int:
        """Returns the number that a rank of this group has in the default group."""
        if self.process_group is None:
            return rank
        return dist.get_global_rank(self.process_group, rank)

    def subgroup(self, ranks: tuple[int, ...]) -> Any:
        """Returns a process group of some ranks, by their numbers in this group.

        It moves CPU tensors. All ranks of the group call it the first time.
        """
        if ranks not in self._subgroups:
            whole: Any = self.process_group or dist.group.WORLD
            everyone = ranks == tuple(range(self.world_size))
            if everyone and torch.device("cpu") in whole._device_types:
                self._subgroups[ranks] = whole
            else:
                # Who is in another group does not come.
                make = dist.new_group if self.process_group is None else new_local_group
                members = [self.global_rank(rank) for rank in ranks]
                self._subgroups[ranks] = make(members, backend="gloo")
        return self._subgroups[ranks]

    def _host_group(self) -> Any:
        """Returns a process group of all ranks that moves what lies on the CPU.

        In a group of devices alone, what ranks tell each other stands in line behind the
        step that the devices are at, and the host waits for it.
        """
        return self.subgroup(tuple(range(self.world_size)))

    def rendezvous(self, client: Client, *, domain: str | None) -> Rendezvous:
        """Finds out which nodes the ranks run on; all ranks call it.

        It changes nothing for those who save this job: who only reads meets, too.

        Args:
            client: The way to this node's daemon.
            domain: The failure domain of this node; None for the node itself.

        Raises:
            DaemonError: A daemon cannot be started.
            CheckpointError: That of another rank cannot.
        """
        identity = self.run_on_all(lambda: client.hello()["id"])
        fresh = (secrets.token_hex(32), secrets.token_hex(8))
        facts = self.all_gather((identity, domain or identity, *fresh))
        secret, run = facts[0][2:]
        ranks: dict[str, list[int]] = {}
        for rank, (name, *_) in enumerate(facts):
            ranks.setdefault(name, []).append(rank)
        places = [("", 0)] * self.world_size

        def listen() -> tuple[str, int]:
            if ranks[identity][0] != self.rank:
                return "", 0
            host = _address()
            question = {"op": "listen", "host": host, "secret": secret}
            return host, client.ask(question)["port"]

        if len(ranks) > 1:
            places = self.all_gather(self.run_on_all(listen))
        nodes = tuple(
            Node(
                id=name,
                host=places[mine[0]][0],
                port=places[mine[0]][1],
                domain=facts[mine[0]][1],
                ranks=tuple(mine),
            )
            for name, mine in ranks.items()
        )
        return Rendezvous(NodeTable(identity, nodes), secret, run)

    def _has_nobody(self) -> bool:
        return self._is_alone or not dist.is_initialized()


def _address() -> str:
    """Returns the address under which other nodes reach this one.

    It is `DRIVETRAIN_CHECKPOINT_HOST`, or the one from which the rendezvous is reached.
    """
    given = os.environ.get("DRIVETRAIN_CHECKPOINT_HOST")
    if given:
        return given
    master = os.environ.get("MASTER_ADDR")
    if not master:
        return "127.0.0.1"
    family, _, _, _, place = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)  # sends nothing: it only chooses the way
        found: str = probe.getsockname()[0]
        return found
