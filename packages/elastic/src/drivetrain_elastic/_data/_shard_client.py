"""Client of the shard service: samples to read, each of them once in the job."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_core import ProgramError
from drivetrain_elastic._client._master_client import (
    MasterClient,
    MasterError,
    RefusedError,
    address_and_token,
)
from drivetrain_elastic.decisions.shards import DatasetSpec, indices_of
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

# How often a client says that it is there while it says nothing else.
_SIGN_OF_LIFE_S = 5.0
_POLL_S = 10.0


class LostLeaseError(ProgramError):
    """Samples were committed under a lease that had ended: another worker reads them."""


class _Held(NamedTuple):
    """A shard that this worker holds."""

    fence: int
    epoch: int
    start: int
    end: int


class ShardClient:
    """Gets shards of a dataset from a job's master, and says what was trained on.

    Every sample of the dataset is committed by one worker of the job, whatever happens to
    workers and to the master. What a worker has read and not committed when it dies is
    read again by another. Used from one thread.

    Args:
        dataset: Its name in the job; the first worker that opens it says what it is.
        num_samples: How many samples it has; None for a source that grows.
        shard_size: How many samples a worker gets at once.
        num_epochs: How often it is read; None without end.
        shuffle: `samples`, in an order of each epoch's own; `shards`, which keeps
            neighbours together; or `none`.
        seed: Of these orders.
        max_failures: How often a shard may come back from a worker that failed. After
            that it is put aside, for a person to look at.
        worker: Who this is; a new name by default.
        address: Of the master; by default DRIVETRAIN_ELASTIC_MASTER.
        token: Of the job; by default DRIVETRAIN_ELASTIC_TOKEN.
        prefetch: How many shards are asked for at once.

    Attributes:
        epoch: That of the last sample.
        finished: Whether every sample of the dataset was committed, or put aside.
        worker: Who this is.

    Raises:
        ProgramError: No master is named, or an argument is out of range.
        RefusedError: The dataset stands already, and is another one; or the token or the
            version is wrong.
        MasterError: No master answers.

    Example:
        >>> import tempfile
        >>> from drivetrain_elastic import Master
        >>> with tempfile.TemporaryDirectory() as folder, Master(f"{folder}/job") as job:
        ...     with ShardClient("train", 10, shard_size=4, address=job.address,
        ...             token=job.token) as client:
        ...         read = []
        ...         for index in client:
        ...             read.append(index)  # train on it, and then
        ...             client.commit()
        >>> sorted(read)
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(
        self,
        dataset: str,
        num_samples: int | None,
        *,
        shard_size: int,
        num_epochs: int | None = 1,
        shuffle: str = "samples",
        seed: int = 0,
        max_failures: int = 3,
        worker: str | None = None,
        address: str | None = None,
        token: str | None = None,
        prefetch: int = 1,
    ) -> None:
        self.spec = DatasetSpec(
            name=dataset,
            num_samples=num_samples,
            shard_size=shard_size,
            num_epochs=num_epochs,
            shuffle=shuffle,
            seed=seed,
            max_failures=max_failures,
        )
        if prefetch < 1:
            message = f"prefetch must be at least 1, got {prefetch}"
            raise ProgramError(message)
        self.worker = worker or f"worker-{uuid.uuid4().hex[:12]}"
        self._prefetch = prefetch
        self._client = MasterClient(*address_and_token(address, token))
        # Shards in the order in which they are read: those of which samples were handed
        # out, the last one perhaps in part, and those that come next.
        self._held: deque[_Held] = deque()
        self._fresh: deque[_Held] = deque()
        self._current: _Held | None = None
        self._place = 0
        self._num_uncommitted = 0
        # Another client may have the same name of a worker, now or later.
        self._caller = uuid.uuid4().hex
        self._num_growths = 0
        self._growing = threading.Lock()
        self.epoch = 0
        self.finished = False
        self._closing = threading.Event()
        try:
            self._open()
        except BaseException:
            self._client.close()
            raise
        self._signs = threading.Thread(
            target=self._give_signs, name="drivetrain-shards", daemon=True
        )
        self._signs.start()

    def _open(self) -> None:
        self._client.call("OpenDataset", pb.Dataset(**asdict(self.spec)))

    def __iter__(self) -> Iterator[int]:
        """Yields indices of samples until the job has none left.

        While other workers hold the last shards, which may come back, it waits; or it
        ends, if this worker has samples to commit itself, for which others may wait.
        Then `finished` is False: commit, and iterate again.
        """
        while self._current or self._fresh or self._lease():
            if self._current is None:
                self._current = self._fresh.popleft()
                self._held.append(self._current)
                self._place = self._current.start
            shard = self._current
            self.epoch = shard.epoch
            indices = indices_of(
                self.spec, epoch=shard.epoch, start=self._place, end=shard.end
            )
            for index in indices.tolist():
                self._place += 1
                self._num_uncommitted += 1
                if self._place == shard.end:
                    self._current = None
                yield index

    def commit(self, num_samples: int | None = None) -> None:
        """Says that samples were trained on: the first of those not committed yet.

        Call it when the step that used them cannot be lost any more.

        Args:
            num_samples: How many; all that were handed out by default.

        Raises:
            ProgramError: So many were not handed out.
            LostLeaseError: The master had given some of them to another worker. The rest
                was committed.
        """
        if num_samples is None:
            num_samples = self._num_uncommitted
        if not 0 <= num_samples <= self._num_uncommitted:
            message = (
                f"{self._num_uncommitted} samples were handed out and not committed, "
                f"{num_samples} cannot be"
            )
            raise ProgramError(message)
        commits = []
        left = num_samples
        while left:
            shard = self._held[0]
            upto = min(shard.start + left, shard.end)
            commits.append(pb.Commit(fence=shard.fence, upto=upto))
            left -= upto - shard.start
            if upto == shard.end:
                self._held.popleft()
            else:
                self._held[0] = shard._replace(start=upto)
        self._num_uncommitted -= num_samples
        reply = self._client.call(
            "CommitShards",
            pb.CommitRequest(
                dataset=self.spec.name, worker=self.worker, commits=commits
            ),
        )
        refusals = [why for why in reply.refusals if why]
        if refusals:
            raise LostLeaseError("; ".join(refusals))

    def grow(self, num_samples: int, *, close: bool = False) -> None:
        """Adds samples to a source that grows, for all workers.

        Args:
            num_samples: How many.
            close: Whether these were the last.

        Raises:
            RefusedError: It grows no more.
            MasterError: No master has answered. The samples are there or not.
        """
        # One after another: a growth with a lower number than another's is a repeated one.
        with self._growing:
            self._num_growths += 1
            growth = pb.Growth(
                dataset=self.spec.name,
                num_samples=num_samples,
                close=close,
                caller=self._caller,
                call=self._num_growths,
            )
            self._client.call("GrowDataset", growth)

    def give_back(self, *, failed: bool = False, reason: str = "given back") -> None:
        """Gives back all that is not committed, for other workers to read.

        Args:
            failed: Whether the samples may be at fault.
            reason: Why, for people.
        """
        shards = [*self._held, *self._fresh]
        self._held.clear()
        self._fresh.clear()
        self._current = None
        self._num_uncommitted = 0
        if shards:
            self._client.call(
                "ReturnShards",
                pb.ReturnRequest(
                    dataset=self.spec.name,
                    worker=self.worker,
                    fences=[shard.fence for shard in shards],
                    failed=failed,
                    reason=reason,
                ),
            )

    def close(self) -> None:
        """Gives back what is not committed, and leaves."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._signs.join()
        try:
            self.give_back(reason=f"{self.worker} has left")
        finally:
            self._client.close()

    def _lease(self) -> bool:
        """Gets more shards; returns whether there were any."""
        # Two that wait for each other's last samples would wait for ever.
        timeout_s = 0.0 if self._num_uncommitted else _POLL_S
        while True:
            reply = self._client.call(
                "LeaseShards",
                pb.LeaseRequest(
                    dataset=self.spec.name,
                    worker=self.worker,
                    num_shards=self._prefetch,
                    timeout_s=timeout_s,
                    held=[shard.fence for shard in (*self._held, *self._fresh)],
                ),
                wait_s=timeout_s,
            )
            self._fresh.extend(_held(shard) for shard in reply.shards)
            self.finished = reply.finished
            if reply.shards or reply.finished or not timeout_s:
                return bool(reply.shards)

    def _give_signs(self) -> None:
        """Says that this worker is there, until it leaves."""
        sign = pb.CommitRequest(dataset=self.spec.name, worker=self.worker)
        while not self._closing.wait(_SIGN_OF_LIFE_S):
            # The worker itself meets the same master, or the lack of one.
            with contextlib.suppress(MasterError, RefusedError):
                self._client.call("CommitShards", sign)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _held(shard: Any) -> _Held:
    return _Held(shard.fence, shard.epoch, shard.start, shard.end)
