"""Saves a run's state into memory that outlives it, and brings it back."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from drivetrain_checkpoint._agree import Policy, agree
from drivetrain_checkpoint._arguments import amount, count, text
from drivetrain_checkpoint._client import Client
from drivetrain_checkpoint._counts import SaveCounts
from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._fill import fill
from drivetrain_checkpoint._find import find
from drivetrain_checkpoint._handle import SaveHandle
from drivetrain_checkpoint._nodes import holders
from drivetrain_checkpoint._pieces import DTYPES
from drivetrain_checkpoint._plain import from_json
from drivetrain_checkpoint._preempt import PreemptNotice, preempt_notice
from drivetrain_checkpoint._rank_memory import Claim, RankMemory
from drivetrain_checkpoint._record import proposal_of, record_bytes, record_of
from drivetrain_checkpoint._save_plan import EntryTexts, SavePlan
from drivetrain_checkpoint._saves import Keep, list_saved, own
from drivetrain_checkpoint._settings import Settings
from drivetrain_checkpoint._storage.open import open_storage, place_of, resolve
from drivetrain_checkpoint._team import Meeting, Team
from drivetrain_core import CheckpointError
from drivetrain_core.services import StatePacker, TensorSpec, plan_restoration

if TYPE_CHECKING:
    import os
    import signal
    from collections.abc import Iterator, MutableMapping, Sequence
    from concurrent.futures import Future

    import torch.distributed as dist
    from torch import Tensor

    from drivetrain_checkpoint._storage.protocol import Storage
    from drivetrain_core.services import Restoration

__all__ = ["Checkpointer"]

logger = logging.getLogger(__name__)


class Checkpointer:
    """Saves in two stages: a copy into shared memory, then storage, by a daemon.

    The daemon of the node owns the memory. It is started with the first save and lives
    on when the trainers die: what was copied is written and committed without them, and
    a new trainer restores from memory, or from storage where there is none. With
    `torch.distributed`, every rank calls `save` and `restore` in the same order; each
    node has a daemon, and all nodes must see the same storage.

    Not thread-safe, but for `guard` and the handles.

    Args:
        folder: Where checkpoints go: a path, or an URL that fsspec knows, such as
            `s3://bucket/run`.
        job: The job's name. Jobs with other names do not see each other's memory.
        keep: How many checkpoints stay on storage, or a `Keep`; None for all of them.
        policy: What `save` does while the memory that it needs is still being written
            from: `wait`; `skip` this save; or `drop_oldest`, which gives up the oldest
            save that was not begun to be written. All is counted in `counts`.
        overlap: Whether `save` returns before the copy is made, which goes on beside
            the next forward and backward pass. `guard` must then be around whatever
            changes the state. A change without it, by torch's operations in place,
            is found in nearly all cases, and fails the save; one that goes past torch
            (`.data`, NumPy) is not.
        replicas: How many other nodes hold each node's newest save in memory.
        failure_domain: What fails together with this node (a rack, a switch): replicas
            go to nodes of other domains. None is the node alone.
        replica_bytes_per_s: How fast a node sends replicas at most; None is without
            limit.
        timeout_s: How long storage may make no progress, and one rank may keep all
            others waiting, before a save fails.
        memory_s: How long the daemon keeps memory for a job that nobody runs.
        local: A folder on a disk of each node, to which saves go first: the way back if
            memory is lost, and storage is far. It keeps the last three of a job.
        storage_options: For URLs, what fsspec is to know: endpoints, credentials.
        num_threads: How many threads copy; those of torch by default.
        process_group: The ranks that save together; the default group by default.
            `self` is this process alone, though there may be others.

    Attributes:
        counts: What became of the saves so far.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An argument is out of its range.
        StorageError: What is needed for the URL is not installed.

    Example:
        >>> import tempfile, torch
        >>> folder = tempfile.mkdtemp()
        >>> model = torch.nn.Linear(4, 2)
        >>> checkpointer = Checkpointer(folder, job="doctest")
        >>> handle = checkpointer.save(10, {"model": model, "position": 640})
        >>> handle.wait()
        True
        >>> state = {"model": torch.nn.Linear(4, 2), "position": 0}
        >>> checkpointer.restore(state), state["position"]
        (10, 640)
        >>> torch.equal(state["model"].weight, model.weight)
        True
        >>> checkpointer.stop_daemon()
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        job: str = "default",
        keep: int | Keep | None = 3,
        policy: Policy = "wait",
        overlap: bool = False,
        replicas: int = 0,
        failure_domain: str | None = None,
        replica_bytes_per_s: float | None = None,
        timeout_s: float = 600.0,
        memory_s: float = 3600.0,
        local: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        num_threads: int | None = None,
        process_group: dist.ProcessGroup | Literal["self"] | None = None,
    ) -> None:
        """Checks the arguments; nothing is started and no folder made."""
        text("job", job)
        if failure_domain is not None:
            text("failure_domain", failure_domain)
        if policy not in get_args(Policy):
            message = f"policy must be one of {get_args(Policy)}, got {policy!r}"
            raise ValueError(message)
        if replica_bytes_per_s is not None:
            replica_bytes_per_s = amount("replica_bytes_per_s", replica_bytes_per_s)
        if num_threads is not None:
            num_threads = count("num_threads", num_threads, 1)
        self._settings = Settings(
            job=job,
            url=resolve(folder),
            options=dict(storage_options or {}),
            keep=keep if isinstance(keep, Keep) else Keep(last=keep),
            limit_s=amount("timeout_s", timeout_s),
            idle_s=amount("memory_s", memory_s),
            local=None if local is None else resolve(local),
        )
        self.counts = SaveCounts()
        self._policy: Policy = policy
        self._replicas = count("replicas", replicas, 0)
        self._domain = failure_domain
        self._replica_rate = replica_bytes_per_s
        self._storage = open_storage(self._settings.url, self._settings.options)
        self._client = Client(self._settings)
        self._team = Team(process_group)
        self._meeting: Meeting | None = None
        self._is_enlisted = False
        self._saved_at_ns = 0
        self._groups: dict[Any, Any] = {}
        self._memory = RankMemory(
            self._client, self._team, num_threads, overlap=overlap
        )
        self._packer = StatePacker()
        self._plan: SavePlan | None = None
        self._entries = EntryTexts()
        self._unreported: list[SaveHandle] = []

    def prewarm(self, state: Mapping[str, object], *, wait: bool = False) -> None:
        """Makes the memory for saves of such a state, beside the training.

        The first save then costs no more than the next. Call it when the state has
        its full size: after an optimizer's first step, since most have no state before.

        Args:
            state: What will be saved.
            wait: Whether to return only when the memory is there.

        Raises:
            TypeError: The state holds what a checkpoint cannot.
            DaemonError: The daemon cannot be started.
            MemoryError: The machine has no memory for a copy.
        """
        self._enlist()
        packed = self._packer.pack(state)
        entries = self._entries.text(packed.entries)
        plan = self._planned(packed.tensors)
        self._memory.provide(plan, record_bytes(entries, plan))
        self._memory.warm(wait=wait)

    def save(
        self,
        step: int,
        state: Mapping[str, object],
        *,
        persist: bool = True,
        under: str = "",
    ) -> SaveHandle:
        """Copies a state into memory; when it returns, the state may be changed.

        With `overlap`, it returns at once, and `guard` waits for the copy. If memory is
        still needed for earlier saves, the checkpointer's policy says what happens.

        Args:
            step: The number of steps that the state has seen. Saving a step again
                replaces it.
            state: Models, optimizers, tensors, objects with `state_dict`, and plain
                data, by name.
            persist: Whether storage follows. Without it the save stays in memory until
                a newer one takes its place, and is brought to storage only by `flush`,
                by waiting for its handle, or by the trainer's death.
            under: The name of a folder in that of the checkpointer, for checkpoints
                that are kept, listed and restored apart from all others; the same on
                every rank. Empty, it is the checkpointer's folder itself.

        Raises:
            TypeError: The state holds what a checkpoint cannot.
            ValueError: The step is negative, `under` is no name, or ranks save
                different plain data.
            NamesError: Two tensors have one name.
            DaemonError: The daemon cannot be started, or another process saves this
                job.
            MemoryError: The machine has no memory for a copy.
            CheckpointError: Another rank cannot save.
        """
        start = time.perf_counter()
        self._memory.settle()
        meeting = self._enlist()
        problem: Exception | None = None
        entries, claim, waited_s = "", Claim(), 0.0
        try:
            step = _checked(step, state)
            place_of(self._settings.url, under)
            packed = self._packer.pack(state)
            entries = self._entries.text(packed.entries)
            plan = self._planned(packed.tensors)
            self._memory.provide(plan, record_bytes(entries, plan))
            claim, waited_s = self._memory.claim(
                wait=self._policy == "wait", drop=self._policy == "drop_oldest"
            )
        # Whatever keeps one rank from saving, the others must not wait for it.
        except Exception as error:  # noqa: BLE001
            problem = error
        try:
            proposals = self._team.exchange(
                proposal_of(
                    step,
                    f"{under}\0{entries}",
                    self._plan,
                    claim,
                    problem,
                    self._saved_at_ns,
                )
            )
        except BaseException:
            # A rank that is gone must not cost the others their memory.
            if "index" in claim:
                self._memory.release()
            raise
        verdict = agree(proposals, self._policy)
        if verdict.action != "save" and "index" in claim:
            self._memory.release()
        if verdict.action == "raise":
            if problem is not None:
                raise problem
            kind = ValueError if "different" in verdict.because else CheckpointError
            raise kind(verdict.because)
        save_id = proposals[0].save_id
        self._saved_at_ns = proposals[0].saved_at_ns
        if verdict.action == "skip":
            self.counts.skipped += 1
            logger.info("step %d is not saved: %s", step, verdict.because)
            return self._handle(step, save_id, under, skipped=True)
        if verdict.action == "wait":
            claim, waited_s = self._memory.claim(wait=True)
        for dropped in verdict.dropped:
            self._client.ask({"op": "drop", "save_id": dropped})
            self.counts.dropped += 1
            logger.info("save %s is dropped for step %d", dropped, step)
        record = record_of(
            proposals[0],
            self._team,
            plan,
            entries,
            job=self._settings.job,
            run=meeting.run,
            under=under,
            persist=persist,
            replicate=self._replicas > 0,
        )
        staging = self._memory.fill(claim, plan, record)
        handle = self._handle(step, save_id, under, staging=staging)
        handle.stall_s = time.perf_counter() - start
        self.counts.saved += 1
        self.counts.waited += waited_s > 0
        self.counts.waited_s += waited_s
        self._unreported = [h for h in self._unreported if not h.durable] + [handle]
        return handle

    def restore(
        self,
        into: MutableMapping[str, object],
        step: int | None = None,
        *,
        strict: bool = True,
        under: str = "",
    ) -> int:
        """Restores a state in place, from the nearest place that has it.

        That is this node's memory, then the memory of other nodes, then local disks,
        then storage. Bytes that several ranks need from farther away are read once, and
        broadcast.

        Args:
            into: What to restore into, by the names that were saved; plain data is
                replaced.
            step: The step; by default the one that was saved last.
            strict: Whether all of `into` has to fit. Otherwise what fits is restored,
                and a warning is logged of all that was left as it is.
            under: The folder in that of the checkpointer, as it was saved.

        Returns:
            The step that was restored.

        Raises:
            TypeError: The step is no whole number.
            ValueError: The step is negative, or `under` is no name.
            CheckpointError: There is none, or it does not fit; then its `mismatches`
                are all that does not. Nothing has been changed.
            CorruptCheckpointError: It is damaged. What was read before is in place, so
                that the state must be restored from another step.
        """
        if step is not None:
            step = count("step", step, 0)
        self._memory.settle()
        meeting, storage = self._met(), self._storage_of(under)
        save = find(self._team, self._client, storage, meeting, step, under)
        entries: Any = from_json(save.entries)
        specs = {
            entry.name: TensorSpec(
                name=entry.name, global_shape=entry.shape, dtype=DTYPES[entry.dtype]
            )
            for entry in save.layout.tensors
        }
        # All ranks know that it fits before the first of them changes anything.
        plan = self._team.on_all(
            lambda: plan_restoration(into, entries, specs, strict=strict)
        )
        targets = self._team.on_all(lambda: _targets_of(plan))
        if plan.mismatches:
            logger.warning("not all was restored: %s", plan.summary())
        fill(self._team, save, targets, self._groups)
        for finish in plan.finish:
            finish()
        return save.choice.step

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Waits for the copy of an overlapped save; put it around what changes a state.

        Example:
            >>> checkpointer = Checkpointer("unused", overlap=True)
            >>> with checkpointer.guard():
            ...     pass  # optimizer.step()
        """
        self._memory.settle()
        yield

    def on_preempt(
        self,
        signals: Sequence[signal.Signals] | None = None,
        *,
        grace_s: float = 30.0,
        then_exit: bool = True,
    ) -> contextlib.AbstractContextManager[PreemptNotice]:
        """Brings what is in memory to storage when the machine is to be taken away.

        Args:
            signals: The signals that announce it; SIGTERM by default.
            grace_s: How long there is, in seconds.
            then_exit: Whether the process ends, with status 128 plus the signal, when
                all is durable or the time is up. Otherwise the training goes on, and
                can look at the notice, save once more, and leave.

        Returns:
            A context manager that gives a notice, which is set by a signal. The
            handlers that were there before are put back at its end.
        """
        return preempt_notice(
            self._settings, signals, grace_s, self._memory.staged, then_exit=then_exit
        )

    def flush(self, deadline_s: float | None = None) -> bool:
        """Waits until every save so far is durable, those in memory alone included.

        Args:
            deadline_s: When to stop waiting, as `time.monotonic()` counts; None is
                without limit.

        Returns:
            Whether all are durable.

        Raises:
            StorageError: A save has failed.
        """
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

    def latest(self) -> int | None:
        """Returns the step that was saved last and is durable, or None."""
        saved = own(list_saved(self._storage), self._settings.job)
        return saved[-1].root.step if saved else None

    def has_daemon(self) -> bool:
        """Returns whether a daemon serves the job on this node; none is started."""
        return self._client.is_running()

    def stop_daemon(self, *, at_once: bool = False) -> None:
        """Stops the daemon of this node, and gives up the memory that it holds.

        Args:
            at_once: Whether to stop although saves are still being written.
        """
        self._memory.settle()
        if self._client.is_running():
            self._client.ask({"op": "stop", "at_once": at_once})
        self._client.retire()
        self._memory.forget()
        self._meeting, self._is_enlisted = None, False

    def _met(self) -> Meeting:
        """Returns what the ranks know of each other; all of them ask at one time."""
        if self._meeting is None:
            self._meeting = self._team.meet(self._client, domain=self._domain)
        return self._meeting

    def _enlist(self) -> Meeting:
        """Makes the nodes of the job known to the daemons, before the first save."""
        meeting = self._met()
        if not self._is_enlisted:
            holders(meeting.nodes.nodes, self._replicas)
            self._client.enlist(
                {
                    "nodes": meeting.nodes.to_plain(),
                    "secret": meeting.secret,
                    "run": meeting.run,
                    "num_replicas": self._replicas,
                    "bytes_per_s": self._replica_rate,
                }
            )
            self._is_enlisted = True
            self._saved_at_ns = max(self._saved_at_ns, self._newest_ns())
        return meeting

    def _newest_ns(self) -> int:
        """Returns when the newest save that the first rank can see was made."""
        if self._team.rank != 0:
            return 0
        found = [0, *self._memory.saved_at_ns()]
        with contextlib.suppress(CheckpointError):
            found += [s.root.saved_at_ns for s in list_saved(self._storage)]
        return max(found)

    def _storage_of(self, under: str) -> Storage:
        if not under:
            return self._storage
        place = place_of(self._settings.url, under)
        return open_storage(place, self._settings.options)

    def _planned(self, tensors: Mapping[str, Tensor]) -> SavePlan:
        if self._plan is None or not self._plan.renew(tensors):
            team = self._team
            self._plan = SavePlan(tensors, team.rank, team.world_size, team.group)
        return self._plan

    def _handle(
        self,
        step: int,
        save_id: str,
        under: str,
        *,
        staging: Future[None] | None = None,
        skipped: bool = False,
    ) -> SaveHandle:
        return SaveHandle(
            step=step,
            save_id=save_id,
            storage=self._storage_of(under),
            under=under,
            client=self._client,
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


def _targets_of(plan: Restoration) -> dict[str, Tensor]:
    targets: dict[str, Tensor] = {}
    for prepare in plan.prepare:
        prepare()
    for target in plan.targets:
        targets.update(target())
    return targets
