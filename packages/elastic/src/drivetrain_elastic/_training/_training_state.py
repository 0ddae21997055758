"""Training state of one rank: how far it is, and how it moves to another rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_elastic._data._schedule import Block, Position
from drivetrain_elastic._membership._world_group import with_others
from drivetrain_elastic._training._batch_scaling import ScaledRate
from drivetrain_elastic._training._gradient_reducer import GradientReducer
from drivetrain_elastic._training._state_transfer import (
    give_state,
    state_digest,
    take_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    import torch
    from torch.distributed import ProcessGroup

    from drivetrain_elastic._data._schedule import Schedule
    from drivetrain_elastic._training._batch_scaling import BatchScaling

_PROGRESS = "drivetrain.progress"
_SCALE = "drivetrain.scale"
_GRADIENTS_TAG = 0x4752


class Training:
    """What a rank has: a model, an optimizer, and whatever else belongs to the state.

    Args:
        model: On this rank.
        optimizer: Of its parameters.
        others: What else moves to a new rank, by name.
        schedule: Which samples each step trains on.
        scaling: How the learning rate follows the batch.

    Attributes:
        step: The last step that is applied here.
        position: How far the data has been trained on.
        num_read: How many samples that were, in all epochs.
        reduced: The last step whose gradients are here as sums over all ranks.
        has_state: Whether the state is that of the training, rather than a new one.
        is_torn: Whether the state is neither a new one nor that of the training, since
            it came from another rank and did not all come.
        epoch: Of the last world in which this rank came to the step of all others.
        reducer: Holds the gradients.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        others: MutableMapping[str, object],
        schedule: Schedule,
        scaling: BatchScaling | None = None,
    ) -> None:
        self.step = 0
        self.position = Position()
        self.num_read = 0
        self.reduced = 0
        self.has_state = False
        self.is_torn = False
        self.epoch = 0
        self.reducer = GradientReducer(model.parameters())
        self._optimizer = optimizer
        self._own: dict[str, object] = {"model": model, "optimizer": optimizer}
        self._others = others
        self._schedule = schedule
        self._rate = ScaledRate(scaling)
        # Of the step in flight.
        self._block = Block(0, 0, 0)
        self._num_copies = 1

    def entries(self) -> dict[str, Any]:
        """Returns the state, as checkpoints and other ranks take it."""
        progress = [self.step, *self.position, self.num_read]
        own = {**self._own, _SCALE: self._rate, _PROGRESS: progress}
        return {**self._others, **own}

    def set_entries(self, entries: Mapping[str, Any]) -> None:
        """Notes what has been put in place of the state."""
        for name in self._others:
            self._others[name] = entries[name]
        step, epoch, start, self.num_read = entries[_PROGRESS]
        self.step = self.reduced = step
        self.position = Position(epoch, start)
        self.is_torn = False

    def digest(self) -> int:
        """Returns a number that two ranks share only if their states are equal."""
        return state_digest(self.entries())

    def begin(
        self,
        num_copies: int,
        let_go: Callable[[], None],
        look_for_news: Callable[[], bool],
        look_for_wish: Callable[[], bool],
    ) -> Block:
        """Begins a step, and returns its samples.

        Args:
            num_copies: How many copies of the model share them.
            let_go: Called before the gradients of the step before are written over.
            look_for_news: Returns whether this rank has news for all others.
            look_for_wish: Returns whether it has a wish that all others are to know.
        """
        self._block = self._schedule.block(self.position, num_copies=num_copies)
        self._num_copies = num_copies
        self.reducer.begin(let_go, look_for_news, look_for_wish)
        return self._block

    def apply(self) -> None:
        """Makes the step whose gradients are here."""
        whole = self._schedule.block(Position(), num_copies=self._num_copies).size
        with self.reducer.shown():
            self._rate.step(self._optimizer, whole, self.num_read)
        self.step += 1
        self.num_read += self._block.size
        self.position = self._schedule.after(self._block)

    def give(self, group: ProcessGroup, to: int) -> None:
        """Sends the state to another rank."""
        give_state(group, to, self.entries())

    def take(self, group: ProcessGroup, source: int) -> None:
        """Receives the state of another rank in place of this one's."""
        self.has_state, self.is_torn = False, True
        entries = self.entries()
        take_state(group, source, entries)
        self.set_entries(entries)
        self.has_state = True

    def give_gradients(self, group: ProcessGroup, to: int) -> None:
        """Sends the gradients of the last step that was reduced."""
        for buffer in self.reducer.buffers:
            # Gloo sends what lies in the memory of the CPU.
            with with_others():
                group.send([buffer.cpu()], to, _GRADIENTS_TAG).wait()

    def take_gradients(self, group: ProcessGroup, source: int) -> None:
        """Receives the gradients of a step that this rank has not reduced."""
        for buffer in self.reducer.buffers:
            taken = buffer.cpu()
            with with_others():
                group.recv([taken], source, _GRADIENTS_TAG).wait()
            if taken is not buffer:
                buffer.copy_(taken)
        self.reduced = self.step + 1
