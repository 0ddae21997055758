"""Checkpointer: saves a state to shared memory, then to storage, and restores it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal, get_args

from drivetrain_checkpoint._arguments import amount, count, mapping, text
from drivetrain_checkpoint._daemon.settings import Settings
from drivetrain_checkpoint._job_context import JobContext
from drivetrain_checkpoint._rank_group import RankGroup
from drivetrain_checkpoint._restore.restore_state import restore_state
from drivetrain_checkpoint._save.agreement import Policy
from drivetrain_checkpoint._save.counts import SaveCounts
from drivetrain_checkpoint._save.preemption import PreemptNotice, preempt_notice
from drivetrain_checkpoint._save.rank_memory import RankMemory
from drivetrain_checkpoint._save.saver import Saver
from drivetrain_checkpoint._storage.catalog import Keep
from drivetrain_checkpoint._storage.open import resolve
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    import os
    import signal
    from collections.abc import Iterator, Mapping, MutableMapping, Sequence

    import torch.distributed as dist

    from drivetrain_checkpoint._save.handle import SaveHandle


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
        job: The job's name. Jobs with other names see neither each other's memory nor
            each other's checkpoints.
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
        adopt: Whether the job, if it has no checkpoint yet, goes on from the newest of
            another job in the folder.

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
        adopt: bool = False,
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
        url = resolve(folder)
        if url.startswith("memory://"):
            message = (
                f"{url} lies in the memory of one process, and a daemon writes what is "
                "saved: give a folder or a store that both reach"
            )
            raise ValueError(message)
        settings = Settings(
            job=job,
            url=url,
            options=dict(storage_options or {}),
            keep=keep if isinstance(keep, Keep) else Keep(last=keep),
            limit_s=amount("timeout_s", timeout_s),
            idle_s=amount("memory_s", memory_s),
            local=None if local is None else resolve(local),
        )
        self.counts = SaveCounts()
        self._doing = ""
        self._job = JobContext(
            settings=settings,
            group=RankGroup(process_group),
            num_replicas=count("replicas", replicas, 0),
            failure_domain=failure_domain,
            replica_bytes_per_s=replica_bytes_per_s,
            adopt=adopt,
        )
        self._memory = RankMemory(
            self._job.client, self._job.group, num_threads, overlap=overlap
        )
        self._saver = Saver(self._job, self._memory, policy, self.counts)

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
        with self._alone("prewarm"):
            self._saver.prewarm(state, wait=wait)

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
                data, by name. A model whose modules have hooks or overrides of
                `state_dict` is held by that. What an object or plain data has for one
                rank alone, small tensors on the CPU among it, is kept for each rank.
            persist: Whether storage follows, for all ranks if one says so. Without it
                the save stays in memory until a newer one takes its place, and is
                brought to storage only by `flush`, by waiting for its handle, or by the
                trainer's death.
            under: The name of a folder in that of the checkpointer, for checkpoints
                that are kept, listed and restored apart from all others; the same on
                every rank. Empty, it is the checkpointer's folder itself.

        Raises:
            TypeError: The state holds what a checkpoint cannot.
            ValueError: The step is negative, `under` is no name, or ranks save
                different models, optimizers, or names.
            NamesError: Two tensors have one name.
            DaemonError: The daemon cannot be started, or another process saves this
                job.
            MemoryError: The machine has no memory for a copy.
            CheckpointError: Another rank cannot save.
        """
        with self._alone("save"):
            return self._saver.save(step, state, persist=persist, under=under)

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
        broadcast. What was kept for each rank is given back to it; where there are more
        or fewer ranks now, it is left as it is, and a warning names it.

        Args:
            into: What to restore into, by the names that were saved; plain data is
                replaced.
            step: The step, the same on every rank; by default the one that was saved
                last.
            strict: Whether all of `into` has to fit. Otherwise what fits is restored,
                and a warning is logged of all that was left as it is.
            under: The folder in that of the checkpointer, as it was saved.

        Returns:
            The step that was restored.

        Raises:
            TypeError: The step is no whole number, or `into` no mapping.
            ValueError: The step is negative, or `under` is no name.
            CheckpointError: There is none, ranks want different ones, or it does not
                fit; then its `mismatches` are all that does not. Nothing has been
                changed.
            CorruptCheckpointError: It is damaged. What was read before is in place, so
                that the state must be restored from another step.
        """
        if step is not None:
            step = count("step", step, 0)
        mapping("state", into)
        with self._alone("restore"):
            self._memory.wait_for_copy()
            return restore_state(self._job, into, step, strict=strict, under=under)

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Waits for the copy of an overlapped save; put it around what changes a state.

        Example:
            >>> checkpointer = Checkpointer("unused", overlap=True)
            >>> with checkpointer.guard():
            ...     pass  # optimizer.step()
        """
        self._memory.wait_for_copy()
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
            then_exit: Whether the process ends: with status 128 plus the signal when
                all is durable, with 1 when the time is up before. Otherwise the
                training goes on, and
                can look at the notice, save once more, and leave.

        Returns:
            A context manager that gives a notice, which is set by a signal. The
            handlers that were there before are put back at its end.
        """
        return preempt_notice(signals, grace_s, self._saver.settle, then_exit=then_exit)

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
        return self._saver.flush(deadline_s)

    def latest(self) -> int | None:
        """Returns the step that was saved last and is durable, or None."""
        return self._job.latest()

    def has_daemon(self) -> bool:
        """Returns whether a daemon serves the job on this node; none is started."""
        return self._job.client.is_running()

    def stop_daemon(self, *, at_once: bool = False) -> None:
        """Stops the daemon of this node, and gives up the memory that it holds.

        Args:
            at_once: Whether to stop although saves are still being written.
        """
        with self._alone("stop_daemon"):
            self._memory.wait_for_copy()
            self._job.stop_daemon(at_once=at_once)
            self._memory.forget()

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Refuses what a signal handler asks for in the midst of something else."""
        if self._doing:
            message = (
                f"{name}() was called in the midst of {self._doing}() of the same "
                "checkpointer, by a signal handler or another thread: let the handler "
                f"set a flag, and call {name}() after the step; or use on_preempt()"
            )
            raise CheckpointError(message)
        try:
            self._doing = name
            yield
        finally:
            self._doing = ""
