"""What an elastic training keeps: committed now and then, and shared with new ranks."""

from __future__ import annotations

import copy
import threading
from enum import IntFlag
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core.services import pack_state
from drivetrain_horovod.on_elastic._collectives import Max, allreduce_, share_state
from drivetrain_horovod.on_elastic._errors import HostsUpdatedInterrupt
from drivetrain_horovod.on_elastic._runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class HostUpdateResult(IntFlag):
    """How the ranks of the next world differ from those of this one."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class State:
    """Something that can be committed, restored, and shared with all ranks.

    A class of one's own says how, in `save`, `restore` and `sync`; rank 0 is always one
    that has the state of the training.

    Args:
        **kwargs: Of a class of one's own.
    """

    def __init__(self, **kwargs: Any) -> None:
        del kwargs  # they are of derived classes
        self._reset_callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._heard_epoch = 0
        self._heard_of = HostUpdateResult.no_update

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Has functions called after each change of the world, before `sync`.

        Args:
            callbacks: Such as one that follows `size()` with the learning rate.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Is called after each change of the world."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: int, update_res: HostUpdateResult) -> None:
        """Is called, from a thread, when there is a newer world.

        Args:
            timestamp: The number of the world.
            update_res: How its ranks differ.
        """
        with self._lock:
            self._heard_epoch = max(self._heard_epoch, timestamp)
            self._heard_of |= update_res

    def commit(self) -> None:
        """Saves the state in memory, then looks whether ranks are to come or to go.

        Raises:
            HostsUpdatedInterrupt: They are.
            HorovodInternalError: A rank is lost.
        """
        self.save()
        runtime().commit()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Looks whether ranks are to come or to go; all ranks find the same.

        Raises:
            HostsUpdatedInterrupt: They are.
            HorovodInternalError: A rank is lost.
        """
        one = runtime()
        has_news, has_more = one.news()
        with self._lock:
            has_heard = self._heard_epoch > one.epoch
            has_more |= has_heard and bool(self._heard_of & HostUpdateResult.added)
            if not has_heard:
                self._heard_of = HostUpdateResult.no_update
        news = torch.tensor([int(has_news or has_heard), int(has_more)])
        has_news, has_more = (allreduce_(news, op=Max) > 0).tolist()
        if has_news:
            raise HostsUpdatedInterrupt(skip_sync=not has_more)

    def save(self) -> None:
        """Keeps the state in memory, to be restored."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """Takes note of a change of the world; does nothing by default."""


class ObjectState(State):
    """Plain data that are attributes.

    Args:
        **kwargs: The attributes: numbers, strings, lists, tuples and dicts of them, and
            tensors.

    Raises:
        TypeError: One of them is something else, which cannot be sent.

    Example:
        >>> state = ObjectState(epoch=0, batch=0)
        >>> state.epoch = 3
        >>> state.restore()
        >>> state.epoch
        0
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._names = tuple(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = {}
        # Not when the first rank comes that it must be sent to.
        pack_state(self._values())
        self.save()

    def save(self) -> None:
        """Keeps a copy of all attributes."""
        self._saved = copy.deepcopy(self._values())

    def restore(self) -> None:
        """Gives all attributes their saved values."""
        for name, value in copy.deepcopy(self._saved).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Gives all ranks the values of rank 0, as they are there now."""
        values = self._values()
        share_state(values, 0)
        for name, value in values.items():
            setattr(self, name, value)
        self.save()

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}
