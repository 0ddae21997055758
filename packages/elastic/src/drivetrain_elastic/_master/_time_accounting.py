"""Time accounting: the facts of the time ledger, for this master and the next one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from drivetrain_elastic.decisions.time_ledger import (
    Account,
    TimeLedger,
    WorldFacts,
    account_for,
    typical_account,
)
from drivetrain_elastic.journal import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from drivetrain_elastic.protocol import messages as pb

_KIND = "time"
# So many of the last worlds may still be told of by their ranks.
_NUM_OPEN = 4
# Nobody has spent more; what is more is no time.
_MOST_S = 1e10


class _World:
    """One world, while its ranks may still tell of it."""

    def __init__(self, facts: WorldFacts, gone: tuple[str, ...]) -> None:
        self.facts = facts
        self.gone = gone
        self.extra_s = 0.0
        self.accounts: dict[str, Account] = {}


class TimeAccounting:
    """Where the time of a job goes; used from one event loop.

    Args:
        records: Takes what is to be written.
        cause_of: Returns why a worker has failed, in a word; empty if that is not known.
    """

    def __init__(self, records: list[Record], cause_of: Callable[[str], str]) -> None:
        self._records = records
        self._cause_of = cause_of
        self._began_s: float | None = None
        self._ended_s: float | None = None
        self._closed: dict[int, WorldFacts] = {}
        self._open: dict[int, _World] = {}
        self._full = 0
        self._shortage: tuple[str, tuple[str, ...]] = ("", ())
        self._lost_since_s: float | None = None

    # ---- the journal ----

    def replay(self, record: Record) -> bool:
        """Takes a record of the journal; returns whether it was one of these."""
        if record.kind != _KIND:
            return False
        body = record.body
        # What passed since is that by the wall clock, which may have been set meanwhile.
        since_s = max(0.0, time.time() - body["at_s"])
        self._began_s = time.monotonic() - body["elapsed_s"] - since_s
        if body["is_over"]:
            self._ended_s = self._began_s + body["elapsed_s"]
        for epoch, size, cause, shortage, account, straggler_s in body["worlds"]:
            facts = WorldFacts(
                epoch, size, cause, shortage, Account(*account), straggler_s
            )
            self._closed[epoch] = facts
            self._full = max(self._full, size)
        self._open.clear()
        for epoch, size, cause, shortage, gone, extra_s, straggler_s in body["open"]:
            facts = WorldFacts(epoch, size, cause, shortage, Account(), straggler_s)
            world = self._open[epoch] = _World(facts, tuple(gone))
            world.extra_s = extra_s
            self._full = max(self._full, size)
        return True

    def dump(self) -> list[Record]:
        """Returns records that take the place of all that were written."""
        if self._began_s is None:
            return []
        return [self._record(list(self._closed.values()))]

    def _record(self, worlds: Sequence[WorldFacts]) -> Record:
        assert self._began_s is not None
        return Record(
            _KIND,
            {
                "at_s": time.time(),
                "elapsed_s": time.monotonic() - self._began_s,
                "is_over": self._ended_s is not None,
                "worlds": [[*w[:4], list(w.account), w.straggler_s] for w in worlds],
                "open": [
                    [*w.facts[:4], list(w.gone), w.extra_s, w.facts.straggler_s]
                    for w in self._open.values()
                ],
            },
        )

    # ---- what happens ----

    def begin(self) -> None:
        """Notes that the first agent has come."""
        if self._began_s is None:
            self._began_s = time.monotonic()

    def end(self) -> None:
        """Notes that the job has ended."""
        if self._ended_s is not None:
            return
        self._ended_s = time.monotonic()
        facts = [self._facts(one) for one in self._open.values()]
        self._closed |= {one.epoch: one for one in facts}
        self._open.clear()
        if self._began_s is not None:
            self._records.append(self._record(facts))

    def lose(self) -> None:
        """Notes that a worker of the world is gone."""
        if self._lost_since_s is None:
            self._lost_since_s = time.monotonic()

    def enter(
        self,
        epoch: int,
        members: Sequence[str],
        before: Sequence[str],
        cause: str,
        gone: Sequence[str],
    ) -> None:
        """Notes a new world.

        Args:
            epoch: Of the world.
            members: Its workers.
            before: Those of the world before.
            cause: Why it was formed, where the diagnosis of those who are gone does not say.
            gone: Those whose loss was the reason.
        """
        size, now_s = len(members), time.monotonic()
        self._full = max(self._full, size)
        if size == self._full:
            self._shortage = "", ()
        elif gone:
            self._shortage = cause, tuple(gone)
        world = _World(WorldFacts(epoch, size, cause, "", Account()), tuple(gone))
        if not before and self._began_s is not None:
            world.extra_s = now_s - self._began_s
        elif not set(members) & set(before) and self._lost_since_s is not None:
            # Nobody is left who could tell how long it took.
            world.extra_s = now_s - self._lost_since_s
        self._lost_since_s = None
        shortage, names = self._shortage
        if shortage:
            known = self._known_cause(names) or shortage
            world.facts = world.facts._replace(shortage=known)
        self._open[epoch] = world
        closing = sorted(self._open)[:-_NUM_OPEN]
        closed = [self._facts(self._open.pop(number)) for number in closing]
        self._closed |= {one.epoch: one for one in closed}
        if self._began_s is not None:
            self._records.append(self._record(closed))

    def take(self, workers: Iterable[pb.WorkerProgress]) -> None:
        """Takes what the ranks say of their time."""
        for one in workers:
            for told in one.accounts:
                world = self._open.get(told.epoch)
                if world is not None:
                    values = {name: getattr(told, name) for name in Account._fields}
                    world.accounts[one.name] = Account(
                        **{
                            name: min(value, _MOST_S) if name.endswith("_s") else value
                            for name, value in values.items()
                        }
                    )

    def slow_down(self, epoch: int, lost_s: float) -> None:
        """Notes that a slow rank has made the steps of a world longer."""
        world = self._open.get(epoch)
        if world is not None and lost_s > 0:
            slower_s = world.facts.straggler_s + lost_s
            world.facts = world.facts._replace(straggler_s=slower_s)

    # ---- the ledger ----

    def ledger(self) -> TimeLedger:
        """Returns where the time has gone until now."""
        if self._began_s is None:
            return account_for(0.0, ())
        end_s = time.monotonic() if self._ended_s is None else self._ended_s
        worlds = dict(self._closed)
        worlds |= {epoch: self._facts(one) for epoch, one in self._open.items()}
        ordered = [worlds[epoch] for epoch in sorted(worlds)]
        return account_for(end_s - self._began_s, ordered)

    def _facts(self, world: _World) -> WorldFacts:
        account = typical_account(list(world.accounts.values()))
        account = account._replace(forming_s=account.forming_s + world.extra_s)
        cause = self._known_cause(world.gone) or world.facts.cause
        return world.facts._replace(account=account, cause=cause)

    def _known_cause(self, names: Iterable[str]) -> str:
        known = [self._cause_of(name) for name in names]
        return ", ".join(sorted({one for one in known if one}))
