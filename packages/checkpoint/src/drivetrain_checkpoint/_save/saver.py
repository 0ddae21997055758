"""Saver: packs a state, agrees on the save with all ranks, and copies it to memory."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._arguments import count, mapping
from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._fields import is_count
from drivetrain_checkpoint._layout.rank_entries import (
    differing,
    entry_digests,
    gather_entries,
    values_digest,
)
from drivetrain_checkpoint._save.agreement import agree
from drivetrain_checkpoint._save.handle import SaveHandle
from drivetrain_checkpoint._save.joined_tensor import gather_state, has_partial_entries
from drivetrain_checkpoint._save.save_metadata import (
    PreparedSave,
    make_proposal,
    metadata_bytes,
    save_metadata,
)
from drivetrain_checkpoint._save.save_plan import EntryTexts, SavePlan
from drivetrain_checkpoint._save.state_packer import StatePacker
from drivetrain_checkpoint._storage.open import child_url
from drivetrain_core import CheckpointError
from drivetrain_core.services import PackedState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_checkpoint._job_context import JobContext
    from drivetrain_checkpoint._save.agreement import Policy, Proposal, Verdict
    from drivetrain_checkpoint._save.counts import SaveCounts
    from drivetrain_checkpoint._save.rank_memory import Claim, RankMemory

logger = logging.getLogger(__name__)


class Saver:
    """Saves the states of a job, with all its ranks.

    Args:
        job: The job.
        memory: This rank's memory.
        policy: What a save does while memory is still needed for earlier ones.
        counts: Where is counted what became of the saves.

    Attributes:
        packer: Takes states apart.
        keeps_apart: Whether plain data that differs from rank to rank is kept for each.
    """

    def __init__(
        self, job: JobContext, memory: RankMemory, policy: Policy, counts: SaveCounts
    ) -> None:
        """Has no memory yet."""
        self.packer: Any = StatePacker()
        self.keeps_apart = True
        self._job = job
        self._memory = memory
        self._policy = policy
        self._counts = counts
        self._plan: SavePlan | None = None
        self._packed = PackedState({}, {})
        self._apart: set[str] = set()
        self._differing = ""
        self._entries = EntryTexts()
        self._saved_at_ns = 0
        self._began_ns = 0
        self._unreported: list[SaveHandle] = []
        self._told: set[str] = set()

    def prewarm(self, state: Mapping[str, object], *, wait: bool) -> None:
        """Makes the memory for saves of such a state, beside the training."""
        self._register()
        self._packed = self._pack(state)
        self._allocate()
        self._memory.warm(wait=wait)

    def save(
        self, step: int, state: Mapping[str, object], *, persist: bool, under: str
    ) -> SaveHandle:
        """Copies a state into memory, as a checkpointer does."""
        start = time.perf_counter()
        self._memory.wait_for_copy()
        self._register()
        ready = self._prepare(step, state, under)
        proposals = self._gather_proposals(ready, under, persist=persist)
        if self._find_apart(proposals):
            self._give_back(ready.claim)
            ready = self._prepare(step, state, under)
            proposals = self._gather_proposals(ready, under, persist=persist)
        verdict = self._agreed(proposals, ready)
        first = proposals[0]
        self._saved_at_ns = first.saved_at_ns
        make_handle = functools.partial(
            SaveHandle,
            step=first.step,
            save_id=first.save_id,
            storage=self._job.storage_of(under),
            under=under,
            client=self._job.client,
        )
        if verdict.action == "skip":
            self._counts.skipped += 1
            logger.info("step %d is not saved: %s", ready.step, verdict.because)
            return make_handle(skipped=True)
        if verdict.action == "wait":
            ready.claim, ready.waited_s = self._memory.claim(wait=True)
        for dropped in verdict.dropped:
            self._job.client.ask({"op": "drop", "save_id": dropped})
            self._counts.dropped += 1
            logger.info("save %s is dropped for step %d", dropped, ready.step)
        assert self._plan is not None
        record = save_metadata(
            first,
            self._job,
            self._plan,
            ready.entries,
            began_ns=self._began_ns,
            under=under,
            persist=any(one.persist for one in proposals),
        )
        staging = self._memory.fill(ready.claim, self._plan, record)
        handle = make_handle(staging=staging)
        handle.stall_s = time.perf_counter() - start
        self._counts.saved += 1
        self._counts.waited += ready.waited_s > 0
        self._counts.waited_s += ready.waited_s
        self._unreported.append(handle)
        self._look_back()
        return handle

    def flush(self, deadline_s: float | None) -> bool:
        """Waits until every save so far is durable, as a checkpointer does."""
        if any(handle.outcome()["state"] == "failed" for handle in self._unreported):
            # What storage has refused before is tried anew.
            self._job.client.ask({"op": "persist"})
        for handle in list(self._unreported):
            left = None if deadline_s is None else deadline_s - time.monotonic()
            try:
                done = handle.wait(left if left is None else max(0.0, left))
            except StorageError:
                self._forget(handle)
                raise
            except CheckpointError:
                done = True  # a newer save has taken its place, as was asked for
            if not done and not handle.skipped:
                return False
            self._forget(handle)
        return True

    def settle(self, deadline: float) -> bool:
        """Brings what is in memory to storage, beside a save that may be under way.

        Args:
            deadline: When to stop waiting, as `time.monotonic()` counts.

        Returns:
            Whether all of it is there.
        """

        def left() -> float:
            return max(0.0, deadline - time.monotonic())

        self._memory.staged(left())
        with contextlib.closing(self._job.client.twin()) as client:
            question = {"op": "settle", "timeout_s": left()}
            done: bool = client.ask(question)["durable"]
            handles = [handle for handle in self._unreported if handle.staged]
            outcomes = [handle.outcome(client) for handle in handles]
        return done and all(_is_settled(outcome) for outcome in outcomes)

    def _look_back(self) -> None:
        """Says which of the saves before have failed; the durable ones are done with."""
        for handle in list(self._unreported):
            outcome = handle.outcome()
            if _is_settled(outcome):
                self._forget(handle)
            elif outcome["state"] == "failed" and handle.save_id not in self._told:
                self._told.add(handle.save_id)
                self._counts.failed += 1
                error = outcome["error"]
                logger.warning("step %d is not saved so far: %s", handle.step, error)

    def _forget(self, handle: SaveHandle) -> None:
        # A signal handler may have asked for the same in between.
        with contextlib.suppress(ValueError):
            self._unreported.remove(handle)

    def _register(self) -> None:
        """Makes the job known to the daemons; its saves are newer than all before."""
        if self._job.register_nodes():
            self._began_ns = 0
        if not self._began_ns:  # the first try may have failed
            self._began_ns = self._job.group.run_on_all(self._begin)

    def _begin(self) -> int:
        """Returns when this run begins: after all saves that its first rank finds."""
        if self._job.group.rank == 0:
            before = [*self._memory.saved_at_ns(), *self._job.saved_at_ns()]
            self._saved_at_ns = max([self._saved_at_ns, *before])
        # Whatever the clocks say.
        return max(time.time_ns(), self._saved_at_ns + 1)

    def _pack(self, state: Mapping[str, object]) -> PackedState:
        if has_partial_entries(state):
            return gather_state(self._job.group, lambda: self.packer.pack(state))
        packed: PackedState = self.packer.pack(state)
        return packed

    def _find_apart(self, proposals: list[Proposal]) -> bool:
        """Finds out what ranks have each for itself; all of them call it.

        Returns:
            Whether there is more of it than before, so that the save is prepared anew.
        """
        is_alike = len({(one.step, one.digest) for one in proposals}) == 1
        has_problem = any(one.problem for one in proposals)
        if is_alike or has_problem or not self.keeps_apart:
            return False
        kept, others = differing(
            self._job.group.all_gather(entry_digests(self._packed))
        )
        self._differing = f" ({', '.join(sorted(others))})" if others else ""
        new = kept - self._apart
        self._apart |= new
        if new and self._job.group.rank == 0:
            logger.info("kept for each rank: %s", ", ".join(sorted(new)))
        return bool(new)

    def _allocate(self) -> str:
        """Makes sure that there is memory for a state; returns its plain half."""
        packed = self._packed
        entries = self._entries.text(packed.entries)
        if self._plan is None or not self._plan.renew(packed.tensors):
            self._plan = SavePlan(packed.tensors, self._job.group)
        self._memory.allocate(self._plan, metadata_bytes(entries, self._plan))
        return entries

    def _prepare(
        self, step: int, state: Mapping[str, object], under: str
    ) -> PreparedSave:
        """Makes ready what this rank can without the others."""
        ready = PreparedSave(step)
        try:
            ready.step = _checked(step, state)
            child_url(self._job.settings.url, under)
            self._packed = self._pack(state)
        # Whatever keeps one rank from saving, the others must not wait for it.
        except Exception as error:  # noqa: BLE001
            ready.problem = error
        if self._apart:
            packed = PackedState({}, {}) if ready.problem else self._packed
            self._packed = gather_entries(
                self._job.group.all_gather, packed, self._apart
            )
        if ready.problem is not None:
            return ready
        try:
            ready.entries = self._allocate()
            if self.keeps_apart and self._job.group.world_size > 1:
                ready.values = values_digest(self._packed)
            # Nobody waits for memory here: what is to free it may be in the hands of a
            # rank that waits for this one.
            ready.claim, _ = self._memory.claim(
                wait=False, drop=self._policy == "drop_oldest"
            )
        except Exception as error:  # noqa: BLE001
            ready.problem = error
        return ready

    def _gather_proposals(
        self, ready: PreparedSave, under: str, *, persist: bool
    ) -> list[Proposal]:
        """Returns what every rank proposes; all call it."""
        try:
            proposal = make_proposal(
                ready, self._plan, under, self._saved_at_ns, persist=persist
            )
            return self._job.group.all_gather(proposal)
        except BaseException:
            # A rank that is gone must not cost the others their memory.
            self._give_back(ready.claim)
            raise

    def _agreed(self, proposals: list[Proposal], ready: PreparedSave) -> Verdict:
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
            raise kind(verdict.because + self._differing)
        return verdict

    def _give_back(self, claim: Claim) -> None:
        if "index" in claim:
            self._memory.release()


def _is_settled(outcome: Mapping[str, Any]) -> bool:
    """Whether a save is durable, or was given up as was asked for."""
    return outcome["state"] == "committed" or bool(outcome.get("dropped"))


def _checked(step: object, state: object) -> int:
    """Returns the step as a plain number.

    Raises:
        TypeError: It is no whole number, or the state is no mapping from names.
        ValueError: It is negative, or more than messages carry.
    """
    number = count("step", step, 0)
    if not is_count(number):
        message = f"the step must be less than 2**62, got {number}"
        raise ValueError(message)
    if other := [key for key in mapping("state", state) if not isinstance(key, str)]:
        message = f"names in the state must be strings, got {other[0]!r}"
        raise TypeError(message)
    return number
