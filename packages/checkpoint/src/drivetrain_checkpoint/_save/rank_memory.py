"""Rank memory: the shared memory of this rank, and the copies of its state into it."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._devices import can_overlap
from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._save.device_copy import DeviceLink, begin_copy

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_checkpoint._daemon.client import Client
    from drivetrain_checkpoint._rank_group import RankGroup
    from drivetrain_checkpoint._save.save_plan import SavePlan

_ROOM = 1.25
"""How much more than the first record's length is set aside for later ones."""

Claim = dict[str, Any]
"""The daemon's answer: the generation that the next save fills, or that all are busy."""


class RankMemory:
    """The arena of this rank, shared with the daemon.

    Args:
        client: The way to the daemon.
        group: The ranks.
        num_threads: How many threads copy; those of torch by default.
        overlap: Whether copies are made beside the training.
    """

    def __init__(
        self,
        client: Client,
        group: RankGroup,
        num_threads: int | None,
        *,
        overlap: bool,
    ) -> None:
        """Has no memory yet."""
        self._client = client
        self._group = group
        self._num_threads = num_threads
        self._overlap = overlap
        self._arena: Arena | None = None
        self._room = 0
        self._link: DeviceLink | None = None
        self._staging: Future[None] | None = None
        self._warming: Future[None] | None = None
        self._has_claim = False

    def allocate(self, plan: SavePlan, record_bytes: int) -> None:
        """Makes sure that there is memory for saves of a plan: what was there, or new.

        Raises:
            MemoryError: The machine has not as much.
            DaemonError: The daemon cannot be started, or another process saves this
                rank.
        """
        rank, image = self._group.rank, plan.image
        if self._warming is not None:
            self._warming.result()
            self._warming = None
        if self._arena is None:
            self._arena = self._client.adopt(rank)
        self._room = record_bytes
        if self._arena is None or not self._arena.holds(image.size_bytes, record_bytes):
            # What lies only in the old memory goes to storage before it is given up.
            self._client.ask({"op": "persist"})
            self.forget()
            arena = Arena.create(image.size_bytes, int(record_bytes * _ROOM))
            self._client.arm(rank, arena)
            self._arena = arena
        self._arena.require_room()

    def warm(self, *, wait: bool) -> None:
        """Makes the memory present, beside the training.

        Raises:
            MemoryError: The machine has not as much; told by the next `allocate` if this
                did not wait.
        """
        assert self._arena is not None
        self._warming = _in_thread(self._arena.populate, Future())
        if wait:
            self._warming.result()

    def claim(self, *, wait: bool, drop: bool = False) -> tuple[Claim, float]:
        """Sets the generation aside that the next save fills.

        Args:
            wait: Whether to wait for it.
            drop: Whether a save that nobody has begun to write may be given up for it.

        Returns:
            The daemon's answer, and how long it was waited for in seconds.
        """
        if self._has_claim:
            self.release()  # an interrupt has ended the save that it was for
        self._has_claim = True
        question = {"op": "claim", "rank": self._group.rank, "drop": drop}
        start = time.perf_counter()
        answer = self._client.ask({**question, "timeout_s": 0.0})
        if "busy" not in answer or not wait:
            return answer, 0.0
        while "busy" in answer:
            answer = self._client.ask({**question, "timeout_s": 1.0})
        return answer, time.perf_counter() - start

    def release(self) -> None:
        """Gives a generation back that was set aside."""
        self._client.ask({"op": "release", "rank": self._group.rank})
        self._has_claim = False

    def fill(self, claim: Claim, plan: SavePlan, record: bytes) -> Future[None] | None:
        """Copies a state and publishes it, now or beside the training.

        Returns:
            What tells when it is done, if it is not; it may hold a `StorageError`.
        """
        arena, index = self._arena, claim["index"]
        assert arena is not None
        try:
            arena.begin(index)
            self._connect(arena, plan)
            address = arena.image_address(self._room, index)
            threads = self._num_threads or torch.get_num_threads()
            before = plan.versions() if self._overlap else 0
            end = begin_copy(plan, arena, address, threads, self._link)
        except BaseException:
            self.release()  # a device may fail, and go on
            raise
        room, size = self._room, plan.image.size_bytes

        def publish() -> None:
            try:
                end()
                _check_unchanged(before, plan.versions() if self._overlap else 0)
            except BaseException:
                self.release()
                raise
            arena.publish(index, claim["sequence"], record, room, size)
            self._client.ask({"op": "saved", "rank": self._group.rank})
            self._has_claim = False

        if not self._overlap:
            publish()
            return None
        # Known before it begins: an interrupt must not leave a copy that nobody awaits.
        self._staging = Future()
        _in_thread(publish, self._staging)
        return self._staging

    def _connect(self, arena: Arena, plan: SavePlan) -> None:
        """Registers the arena with the device that a state lies on, once."""
        devices = {block.device for block, _ in plan.others}
        for device in filter(can_overlap, devices):
            self._link = self._link or DeviceLink(
                device.type, arena.address, arena.size_bytes, arena
            )

    def staged(self, timeout_s: float) -> None:
        """Waits for the copy that is being made; safe in a thread of its own."""
        staging = self._staging
        if staging is not None:
            with contextlib.suppress(TimeoutError):
                staging.exception(timeout_s)

    def saved_at_ns(self) -> list[int]:
        """Returns when the saves in this rank's memory were made."""
        if self._arena is None:
            self._arena = self._client.adopt(self._group.rank)
        there = self._arena.generations() if self._arena else []
        return [generation.record["saved_at_ns"] for generation in there]

    def wait_for_copy(self) -> None:
        """Waits for the copy that is being made; its handle tells what went wrong."""
        if self._staging is not None:
            self._staging.exception()
            self._staging = None

    def forget(self) -> None:
        """Lets go of the memory; the daemon has it still."""
        if self._link is not None:
            self._link.close()
            self._link = None
        self._arena = None


def _check_unchanged(before: int, now: int) -> None:
    if now != before:
        message = (
            "the state was changed while it was being copied; put `with "
            "checkpointer.guard():` around what changes it"
        )
        raise StorageError(message)


def _in_thread(work: Callable[[], None], future: Future[None]) -> Future[None]:
    """Runs something in a thread that ends with it, and tells a future.

    A script that ends waits for it: for the copy of its last save, and because an
    interpreter must not end under a thread that is in native code.
    """

    def run() -> None:
        try:
            work()
            future.set_result(None)
        # The future tells whoever asks.
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)

    thread = threading.Thread(target=run)
    try:
        thread.start()
    except BaseException as error:
        if thread.ident is None:  # it never ran
            future.set_exception(error)
        raise
    return future
