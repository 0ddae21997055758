"""Saves a state into memory: packed by one rank, agreed on by all, copied by each."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._agree import agree
from drivetrain_checkpoint._arguments import count
from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._handle import SaveHandle
from drivetrain_checkpoint._record import proposal_of, record_bytes, record_of
from drivetrain_checkpoint._save_plan import EntryTexts, SavePlan
from drivetrain_checkpoint._storage.open import place_of
from drivetrain_checkpoint._united import has_parts, united
from drivetrain_core import CheckpointError
from drivetrain_core.services import StatePacker

if TYPE_CHECKING:
    from concurrent.futures import Future

    from torch import Tensor

    from drivetrain_checkpoint._agree import Policy, Proposal, Verdict
    from drivetrain_checkpoint._counts import SaveCounts
    from drivetrain_checkpoint._job import Job
    from drivetrain_checkpoint._rank_memory import Claim, RankMemory

__all__ = ["Saver"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Prepared:
    """What this rank has made ready for a save, as far as it came.

    Args:
        step: The step, as it was given or as a plain number.
        entries: The plain half of the state, as JSON.
        claim: The daemon's answer when it was asked for memory.
        waited_s: How long that was waited for.
        problem: Why this rank cannot save, if it cannot.
    """

    step: Any
    entries: str = ""
    claim: Claim = field(default_factory=dict)
    waited_s: float = 0.0
    problem: Exception | None = None


class Saver:
    """Saves the states of a job, with all its ranks.

    Args:
        job: The job.
        memory: This rank's memory.
        policy: What a save does while memory is still needed for earlier ones.
        counts: Where is counted what became of the saves.

    Attributes:
        packer: Takes states apart.
    """

    def __init__(
        self, job: Job, memory: RankMemory, policy: Policy, counts: SaveCounts
    ) -> None:
        """Has no memory yet."""
        self.packer: Any = StatePacker()
        self._job = job
        self._memory = memory
        self._policy = policy
        self._counts = counts
        self._plan: SavePlan | None = None
        self._entries = EntryTexts()
        self._saved_at_ns = 0
        self._unreported: list[SaveHandle] = []

    def prewarm(self, state: Mapping[str, object], *, wait: bool) -> None:
        """Makes the memory for saves of such a state, beside the training."""
        self._enlist()
        self._provide(state)
        self._memory.warm(wait=wait)

    def save(
        self, step: int, state: Mapping[str, object], *, persist: bool, under: str
    ) -> SaveHandle:
        """Copies a state into memory, as a checkpointer does."""
        start = time.perf_counter()
        self._memory.settle()
        self._enlist()
        ready = self._prepare(step, state, under)
        proposals = self._exchange(ready, under)
        verdict = self._agreed(proposals, ready)
        first = proposals[0]
        self._saved_at_ns = first.saved_at_ns
        if verdict.action == "skip":
            self._counts.skipped += 1
            logger.info("step %d is not saved: %s", ready.step, verdict.because)
            return self._handle(first, under, skipped=True)
        if verdict.action == "wait":
            ready.claim, ready.waited_s = self._memory.claim(wait=True)
        for dropped in verdict.dropped:
            self._job.client.ask({"op": "drop", "save_id": dropped})
            self._counts.dropped += 1
            logger.info("save %s is dropped for step %d", dropped, ready.step)
        assert self._plan is not None
        record = record_of(
            first,
            self._job.team,
            self._plan,
            ready.entries,
            job=self._job.settings.job,
            run=self._job.meet().run,
            under=under,
            persist=persist,
            replicate=self._job.num_replicas > 0,
        )
        staging = self._memory.fill(ready.claim, self._plan, record)
        handle = self._handle(first, under, staging=staging)
        handle.stall_s = time.perf_counter() - start
        self._counts.saved += 1
        self._counts.waited += ready.waited_s > 0
        self._counts.waited_s += ready.waited_s
        self._unreported = [h for h in self._unreported if not h.durable] + [handle]
        return handle

    def flush(self, deadline_s: float | None) -> bool:
        """Waits until every save so far is durable, as a checkpointer does."""
        for handle in list(self._unreported):
            left = None if deadline_s is None else deadline_s - time.monotonic()
            try:
                done = handle.wait(left if left is None else max(0.0, left))
            except StorageError:
                self._unreported.remove(handle)
                raise
            except CheckpointError:
                done = True  # a newer save has taken its place, as was asked for
            if not done and not handle.skipped:
                return False
            self._unreported.remove(handle)
        return True

    def _enlist(self) -> None:
        if self._job.enlist():
            self._saved_at_ns = max(self._saved_at_ns, self._newest_ns())

    def _newest_ns(self) -> int:
        """Returns when the newest save that the first rank can see was made."""
        if self._job.team.rank != 0:
            return 0
        return max([0, *self._memory.saved_at_ns(), *self._job.saved_at_ns()])

    def _provide(self, state: Mapping[str, object]) -> str:
        """Makes sure that there is memory for a state; returns its plain half."""
        if has_parts(state):
            packed = united(self._job.team, lambda: self.packer.pack(state))
        else:
            packed = self.packer.pack(state)
        entries = self._entries.text(packed.entries)
        plan = self._planned(packed.tensors)
        self._memory.provide(plan, record_bytes(entries, plan))
        return entries

    def _planned(self, tensors: Mapping[str, Tensor]) -> SavePlan:
        if self._plan is None or not self._plan.renew(tensors):
            team = self._job.team
            self._plan = SavePlan(tensors, team.rank, team.world_size, team.group)
        return self._plan

    def _prepare(self, step: int, state: Mapping[str, object], under: str) -> _Prepared:
        """Makes ready what this rank can without the others."""
        ready = _Prepared(step)
        try:
            ready.step = _checked(step, state)
            place_of(self._job.settings.url, under)
            ready.entries = self._provide(state)
            ready.claim, ready.waited_s = self._memory.claim(
                wait=self._policy == "wait", drop=self._policy == "drop_oldest"
            )
        # Whatever keeps one rank from saving, the others must not wait for it.
        except Exception as error:  # noqa: BLE001
            ready.problem = error
        return ready

    def _exchange(self, ready: _Prepared, under: str) -> list[Proposal]:
        """Returns what every rank proposes; all call it."""
        try:
            return self._job.team.exchange(
                proposal_of(
                    ready.step,
                    f"{under}\0{ready.entries}",
                    self._plan,
                    ready.claim,
                    ready.problem,
                    self._saved_at_ns,
                )
            )
        except BaseException:
            # A rank that is gone must not cost the others their memory.
            self._give_back(ready.claim)
            raise

    def _agreed(self, proposals: list[Proposal], ready: _Prepared) -> Verdict:
        """Returns what all ranks do.

        Raises:
            CheckpointError: One of them cannot save; this one raises why.
            ValueError: They save different plain data.
        """
        verdict = agree(proposals, self._policy)
        if verdict.action != "save":
            self._give_back(ready.claim)
        if verdict.action == "raise":
            if ready.problem is not None:
                raise ready.problem
            kind = ValueError if "different" in verdict.because else CheckpointError
            raise kind(verdict.because)
        return verdict

    def _give_back(self, claim: Claim) -> None:
        if "index" in claim:
            self._memory.release()

    def _handle(
        self,
        proposal: Proposal,
        under: str,
        *,
        staging: Future[None] | None = None,
        skipped: bool = False,
    ) -> SaveHandle:
        return SaveHandle(
            step=proposal.step,
            save_id=proposal.save_id,
            storage=self._job.storage_of(under),
            under=under,
            client=self._job.client,
            staging=staging,
            skipped=skipped,
        )


def _checked(step: object, state: object) -> int:
    """Returns the step as a plain number.

    Raises:
        TypeError: It is no whole number, or the state is no mapping from names.
        ValueError: It is negative.
    """
    number = count("step", step, 0)
    if not isinstance(state, Mapping):
        message = f"the state must be a mapping from names, got {type(state).__name__}"
        raise TypeError(message)
    if other := [key for key in state if not isinstance(key, str)]:
        message = f"names in the state must be strings, got {other[0]!r}"
        raise TypeError(message)
    return number
