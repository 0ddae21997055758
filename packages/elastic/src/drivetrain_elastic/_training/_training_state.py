"""Training state of one rank: how far it is, and how it moves to another rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.amp import GradScaler
from torch.nn.parameter import is_lazy

from drivetrain_elastic._data._schedule import Block, Position
from drivetrain_elastic._training._batch_scaling import ScaledRate
from drivetrain_elastic._training._gradient_reducer import GradientReducer
from drivetrain_elastic._training._parameter_hooks import is_linear
from drivetrain_elastic._training._refusals import refuse
from drivetrain_elastic._training._script_updates import as_optimizers
from drivetrain_elastic._training._state_transfer import (
    give_state,
    require_movable,
    state_digest,
    take_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping, Sequence

    from torch.distributed import ProcessGroup

    from drivetrain_elastic._data._schedule import Schedule
    from drivetrain_elastic._training._batch_scaling import BatchScaling

_PROGRESS = "drivetrain.progress"
_SCALE = "drivetrain.scale"
_GRADIENTS = "drivetrain.gradients"


class Training:
    """What a rank has: a model, an optimizer, and whatever else belongs to the state.

    Args:
        model: On this rank.
        optimizer: Of its parameters; there may be several.
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
        is_spent: Whether the update has changed the gradients that it was made with.
        epoch: Of the last world in which this rank came to the step of all others.
        reducer: Holds the gradients.
        optimizers: As a list.

    Raises:
        ProgramError: The model has parameters without a shape, or an optimizer is none.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
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
        self.is_spent = False
        # Hooks of parameters that need not be looked at again.
        self._linear: set[object] = set()
        self.optimizers = as_optimizers(optimizer)
        _require_shapes(model)
        self._of_model = list(model.parameters())
        # All that may have gradients, and what optimizers had when that was looked up.
        self._all: list[torch.Tensor] = []
        self._optimized: list[int] | None = None
        self.reducer = GradientReducer(self._wanted())
        self._own: dict[str, object] = {"model": model, "optimizer": self.optimizers[0]}
        for at, one in enumerate(self.optimizers[1:], 1):
            self._own[f"optimizer.{at}"] = one
        self._others = others
        self._num_at_first = self._num_optimized()
        for other in others.values():
            if isinstance(other, GradScaler):
                # A rank without samples scales no loss, and is to look at sums all the same.
                other.scale(torch.zeros((), device=self.reducer.device))
        self._schedule = schedule
        self._rate = ScaledRate(scaling)
        # Of the step in flight.
        self._block = Block(0, 0, 0)
        self._num_copies = 1

    def entries(self) -> dict[str, Any]:
        """Returns the state, as checkpoints and other ranks take it."""
        trained = "".join(str(int(one.requires_grad)) for one in self._of_model)
        progress = [self.step, *self.position, self.num_read, trained]
        own = {**self._own, _SCALE: self._rate, _PROGRESS: progress}
        return {**self._others, **own}

    def set_entries(self, entries: Mapping[str, Any]) -> None:
        """Notes what has been put in place of the state."""
        for name in self._others:
            self._others[name] = entries[name]
        step, epoch, start, self.num_read, *_ = entries[_PROGRESS]
        self.step = self.reduced = step
        self.position = Position(epoch, start)
        self.is_torn = False

    def digest(self) -> int:
        """Returns a number that two ranks share only if their states are equal.

        Raises:
            ProgramError: The state cannot be given to another rank.
        """
        require_movable(self.entries())
        return state_digest(self.entries())

    def begin(
        self,
        num_copies: int,
        let_go: Callable[[], None],
        look_for_news: Callable[[], bool],
        look_for_wish: Callable[[], bool],
    ) -> Block:
        """Begins a step, and returns its samples.

        What needs a gradient may have changed since the last one.

        Args:
            num_copies: How many copies of the model share them.
            let_go: Called before the gradients of the step before are written over.
            look_for_news: Returns whether this rank has news for all others.
            look_for_wish: Returns whether it has a wish that all others are to know.
        """
        self._block = self._schedule.block(self.position, num_copies=num_copies)
        self._num_copies = num_copies
        wanted = self._wanted()
        if not self.reducer.covers(wanted):
            let_go()
            self.reducer.cover(wanted)
        self.reducer.begin(let_go, look_for_news, look_for_wish)
        return self._block

    def apply(self) -> None:
        """Makes the step whose gradients are here."""
        whole = self._schedule.block(Position(), num_copies=self._num_copies).size
        if self.reducer.sums is not None:
            with self.reducer.shown():
                before = self._versions()
                for one in self.optimizers:
                    self._rate.step(one, whole, self.num_read)
                self.is_spent = self._versions() != before
        self.step += 1
        self.num_read += self._block.size
        self.position = self._schedule.after(self._block)

    def _versions(self) -> list[int]:
        return [one._version for one in self.reducer.sums or () if one is not None]

    def give(self, group: ProcessGroup, to: int) -> None:
        """Sends the state to another rank."""
        give_state(group, to, self.entries())

    def take(self, group: ProcessGroup, source: int) -> None:
        """Receives the state of another rank in place of this one's."""
        self.has_state, self.is_torn = False, True
        entries = self.entries()
        take_state(group, source, entries)
        self.set_entries(entries)
        for one, is_trained in zip(self._of_model, entries[_PROGRESS][-1], strict=True):
            one.requires_grad_(is_trained == "1")
        self.has_state = True

    def give_gradients(self, group: ProcessGroup, to: int) -> None:
        """Sends the gradients of the last step that was reduced, and what came of it."""
        give_state(group, to, {**self._others, _GRADIENTS: self.reducer.sums})

    def take_gradients(self, group: ProcessGroup, source: int) -> None:
        """Receives the gradients of a step that this rank has not reduced."""
        entries: dict[str, Any] = {**self._others, _GRADIENTS: self.reducer.room()}
        # Without others all of its own state stays, whatever comes.
        self.has_state, self.is_torn = not self._others, bool(self._others)
        take_state(group, source, entries)
        self.reducer.sums = entries.pop(_GRADIENTS)
        self._others.update(entries)
        self.has_state, self.is_torn = True, False
        self.reduced = self.step + 1

    def _wanted(self) -> list[torch.Tensor]:
        """Returns what needs a gradient now: also what optimizers have beside the model."""
        groups = [group for one in self.optimizers for group in one.param_groups]
        optimized = [one for group in groups for one in group["params"]]
        if [*map(id, optimized)] != self._optimized:
            self._optimized = [*map(id, optimized)]
            # Copies that an optimizer makes of parameters get no gradients.
            masters = {
                id(one)
                for optimizer in self.optimizers
                for _, one in getattr(optimizer, "master_weights", ())
            }
            trained = [one for one in optimized if id(one) not in masters]
            self._all = [*dict.fromkeys([*self._of_model, *trained])]
        return [one for one in self._all if one.requires_grad]

    def require_joinable(self, *, has_scaler: bool = False) -> None:
        """Refuses what a rank that joins would lack, while there is none.

        Args:
            has_scaler: Whether a `GradScaler` has scaled the loss.

        Raises:
            ProgramError: It would lack something.
        """
        if self._num_optimized() != self._num_at_first:
            refuse("given_later")
        held = [
            one for optimizer in self.optimizers for one in vars(optimizer).values()
        ]
        has_scaler |= any(isinstance(one, GradScaler) for one in held)
        others = self._others.values()
        if has_scaler and not any(isinstance(one, GradScaler) for one in others):
            refuse("scaler")

    def require_linear_hooks(self) -> None:
        """Refuses hooks that would see a part of the batch alone, where it has parts.

        Raises:
            ProgramError: There is one.
        """
        for one in self.reducer.parameters:
            for hook in (one._backward_hooks or {}).values():
                if hook in self._linear:
                    continue
                if not is_linear(hook, one):
                    named = cast(
                        "torch.nn.Module", self._own["model"]
                    ).named_parameters()
                    name = next((name for name, other in named if other is one), "")
                    refuse("hook", name=name)
                self._linear.add(hook)

    def require_covered(self) -> None:
        """Refuses a step in which gradients were made that are not summed.

        Raises:
            ProgramError: There are some.
        """
        if not self.reducer.covers(self._wanted()):
            refuse("uncovered")

    def settle(self, scale: torch.Tensor | None, *, is_left_out: bool) -> None:
        """Takes what the script has made of the sums as the gradients of this step.

        Args:
            scale: What they are to be divided by; None for nothing.
            is_left_out: Whether the step makes no update.
        """
        self.reducer.settle()
        if scale is not None:
            with torch.no_grad():
                for one in self.reducer.sums or ():
                    if one is not None:
                        one.mul_(1.0 / float(scale))
        if is_left_out:
            self.reducer.sums = None
        self.reduced, self.is_spent = self.step + 1, False

    def _num_optimized(self) -> int:
        groups = [group for one in self.optimizers for group in one.param_groups]
        return sum(len(group["params"]) for group in groups)


def _require_shapes(model: torch.nn.Module) -> None:
    for name, one in model.named_parameters():
        if is_lazy(one):
            refuse("no_shape", name=name)
