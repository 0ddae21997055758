"""All ranks take the same table, or none takes any.

NCCL waits for ever when ranks of a communicator choose differently, so that a table that
one rank refuses must be refused by all. Each rank says what it has, rank 0 judges, and
all of them do what rank 0 has said.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

from drivetrain_comm._version import __version__
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from torch.distributed.distributed_c10d import Store

_MOST_NAMED = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a rank says of its table.

    Args:
        host: What its host is called.
        hash: Of its rules; empty if it has none.
        refusal: Why it cannot use its table, or None.
        version: Of this package, since another may decide otherwise.
        nonce: Tells this call from earlier ones with the same store.
    """

    host: str
    hash: str
    refusal: str | None = None
    version: str = __version__
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))


def find_disagreement(answers: Sequence[Answer]) -> str | None:
    """Returns why ranks cannot all use their tables, naming them, or None if they can.

    Args:
        answers: One a rank.

    Example:
        >>> a, b = Answer(host="n0", hash="aa11"), Answer(host="n1", hash="bb22")
        >>> find_disagreement([a, a, b])
        'the rules of the NCCL table differ between ranks: hash aa11 on ranks 0, 1 (n0);
        bb22 on rank 2 (n1). Give all hosts the same file'
        >>> find_disagreement([a, a])
    """

    def named_by(name: str) -> dict[str | None, str]:
        """Returns the ranks of each value of a field, as messages name them."""
        ranks: dict[str | None, list[int]] = {}
        for rank, answer in enumerate(answers):
            ranks.setdefault(getattr(answer, name), []).append(rank)
        return {value: _name(those, answers) for value, those in ranks.items()}

    refusals = named_by("refusal")
    refusals.pop(None, None)
    if refusals:
        parts = [f"{who}: {refusal}" for refusal, who in refusals.items()]
        return f"the NCCL table is used on no rank: {'; '.join(parts)}"
    for name, what, fix in (
        (
            "version",
            "the versions of drivetrain-comm differ between ranks:",
            "Install the same on all hosts",
        ),
        (
            "hash",
            "the rules of the NCCL table differ between ranks: hash",
            "Give all hosts the same file",
        ),
    ):
        found = named_by(name)
        if len(found) > 1:
            parts = [f"{value} on {who}" for value, who in found.items()]
            return f"{what} {'; '.join(parts)}. {fix}"
    return None


def agree(
    store: Store, rank: int, world_size: int, mine: Answer, timeout: timedelta
) -> None:
    """Returns on all ranks if all can use their tables.

    Args:
        store: Where they meet, with a prefix of this call's own.
        rank: This one.
        world_size: The number of ranks.
        mine: What this rank says.
        timeout: How long to wait for the others.

    Raises:
        DistributedError: Some rank cannot, which is raised on all of them, or some rank
            has not come in time, which is raised on those that wait for it.
    """
    store.set(f"answer/{rank}", json.dumps(asdict(mine)))
    if rank == 0:
        keys = [f"answer/{peer}" for peer in range(world_size)]
        _wait(store, keys, timeout)
        answers = [_read(json.loads(text)) for text in store.multi_get(keys)]
        verdict = {
            "disagreement": find_disagreement(answers),
            "nonces": [answer.nonce for answer in answers],
        }
        store.set("verdict", json.dumps(verdict))
    _wait(store, ["verdict"], timeout)
    verdict = json.loads(store.get("verdict"))
    if verdict["nonces"][rank] != mine.nonce:
        message = (
            f"rank {rank} finds what an earlier start of the job said: give each start "
            "a store, or a prefix in it, of its own"
        )
        raise DistributedError(message)
    if verdict["disagreement"] is not None:
        raise DistributedError(verdict["disagreement"])


def _read(said: dict[str, str]) -> Answer:
    # What another version says may have other parts; its own version is among them.
    known = {field.name for field in fields(Answer)}
    return Answer(**{name: value for name, value in said.items() if name in known})


def _name(ranks: Sequence[int], answers: Sequence[Answer]) -> str:
    """Names ranks and their hosts, the first few if there are many."""
    hosts = list(dict.fromkeys(answers[rank].host for rank in ranks))
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {_list(ranks)} ({_list(hosts)})"


def _list(values: Sequence[object]) -> str:
    named = ", ".join(map(str, values[:_MOST_NAMED]))
    more = len(values) - _MOST_NAMED
    return f"{named} and {more} more" if more > 0 else named


def _wait(store: Store, keys: list[str], timeout: timedelta) -> None:
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:
        missing = [key for key in keys if not store.check([key])]
        if not missing:
            return
        ranks = [key.rpartition("/")[2] for key in missing]
        who = "rank 0" if keys == ["verdict"] else f"ranks {_list(ranks)}"
        message = (
            f"waited {timeout.total_seconds():g} s in vain for {who} to call "
            "enable_tuner: all ranks must"
        )
        raise DistributedError(message) from error
