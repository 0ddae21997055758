"""Rendezvous of the ranks of a group: one set and one get of the store a rank.

Rank 0 collects what all have said and publishes it as one value, so that the store does
O(W) operations for W ranks instead of O(W^2).
"""

from __future__ import annotations

import json
import math
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.distributed_c10d import Store

# Raised whenever ranks of two versions could not work together.
PROTOCOL = 2
_TURN_S, _PAUSE_S = 0.5, 0.001


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """Address and settings of one rank.

    Args:
        version: Of this package.
        protocol: Of what ranks send to each other.
        identity: Ranks with the same one share memory.
        hostname: What the host is called.
        host: Its numeric address.
        port: Its port there.
        local_name: Its name within the host.
        settings: What must be the same on all ranks, in words.
        lacks: Why it has no native engine, or None.
        nonce: Tells this call from those of earlier groups.
    """

    version: str
    protocol: int
    identity: str
    hostname: str
    host: str
    port: int
    local_name: str
    settings: str
    lacks: str | None
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMembers:
    """All ranks of a group.

    Args:
        token: 16 bytes that only they know.
        members: One a rank.
    """

    token: bytes
    members: tuple[Member, ...]

    @property
    def hostnames(self) -> tuple[str, ...]:
        """What the host of each rank is called."""
        return tuple(member.hostname for member in self.members)

    @property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host; hosts in the order of their first rank."""
        found: dict[str, list[int]] = {}
        for rank, member in enumerate(self.members):
            found.setdefault(member.identity, []).append(rank)
        return tuple(tuple(ranks) for ranks in found.values())


def rendezvous(
    store: Store, rank: int, world_size: int, mine: Member, timeout: timedelta
) -> GroupMembers:
    """Returns what all ranks say, once all have said it.

    Args:
        store: Where they meet, with a prefix of the group's own.
        rank: This one.
        world_size: The number of ranks.
        mine: What this rank says.
        timeout: How long to wait for the others.

    Raises:
        DistributedError: Ranks contradict each other, or have not come in time.
    """
    store.set(f"member/{rank}", json.dumps(asdict(mine)))
    if rank == 0:
        keys = [f"member/{peer}" for peer in range(world_size)]
        _wait(store, keys, timeout)
        said = [json.loads(text) for text in store.multi_get(keys)]
        whole = {"token": secrets.token_hex(16), "members": said}
        store.set("roster", json.dumps(whole))
    _wait(store, ["roster"], timeout)
    found = json.loads(store.get("roster"))
    # What another version says may not be what a member of this one is.
    wrong = _find_other_protocol(found["members"], rank, mine)
    if wrong:
        raise DistributedError(wrong)
    members = tuple(Member(**member) for member in found["members"])
    if members[rank].nonce != mine.nonce:
        message = (
            f"rank {rank} finds what the ranks of an earlier group said: give each "
            "group a store, or a prefix in it, of its own"
        )
        raise DistributedError(message)
    wrong = find_contradiction(members)
    if wrong:
        raise DistributedError(wrong)
    return GroupMembers(token=bytes.fromhex(found["token"]), members=members)


def _find_other_protocol(
    said: Sequence[dict[str, Any]], rank: int, mine: Member
) -> str | None:
    for peer, member in enumerate(said):
        if member.get("protocol") != mine.protocol:
            return (
                f"rank {peer} runs drivetrain-comm {member.get('version')} (protocol "
                f"{member.get('protocol')}), rank {rank} {mine.version} (protocol "
                f"{mine.protocol}): install the same version on all ranks"
            )
    return None


def find_contradiction(members: Sequence[Member]) -> str | None:
    """Returns how ranks contradict each other, naming them and their values, or None."""
    first = members[0]
    for rank, member in enumerate(members):
        if member.settings != first.settings:
            return (
                f"rank {rank} has the settings {member.settings}, rank 0 "
                f"{first.settings}: they must be the same on all ranks"
            )
    return None


def _wait(store: Store, keys: list[str], timeout: timedelta) -> None:
    until_s = time.monotonic() + timeout.total_seconds()
    turn_s = _TURN_S
    while True:
        left_s = max(until_s - time.monotonic(), 0.0)
        try:
            # Torch's store serves one call at a time on a connection, and other threads
            # may have groups that wait too.
            return store.wait(keys, timedelta(seconds=min(left_s, turn_s)))
        except RuntimeError as problem:
            error = problem
        missing = [key for key in keys if not store.check([key])]
        if not missing:
            return None
        if left_s > 0:
            # TCPStore warns of each turn: one that is long takes a connection of its own.
            with suppress(RuntimeError, NotImplementedError):
                store, turn_s = store.clone(), math.inf  # type: ignore[attr-defined]
            time.sleep(_PAUSE_S)
            continue
        names = ", ".join(key.rpartition("/")[2] for key in missing)
        who = "rank 0" if keys == ["roster"] else f"ranks {names}"
        message = f"waited {timeout.total_seconds():g} s in vain for {who} to come"
        raise DistributedError(message) from error
