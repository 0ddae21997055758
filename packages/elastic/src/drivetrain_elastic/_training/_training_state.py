"""Training state of one rank: how far it is, and how it moves to another rank."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import torch
from torch.amp import GradScaler
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from drivetrain_elastic._data._schedule import Block, Position
from drivetrain_elastic._training._batch_scaling import ScaledRate
from drivetrain_elastic._training._comparison import require_alike
from drivetrain_elastic._training._gradient_reducer import GradientReducer
from drivetrain_elastic._training._parameter_hooks import is_linear
from drivetrain_elastic._training._refusals import refuse
from drivetrain_elastic._training._rollback import (
    BufferCopies,
    GeneratorState,
    StateCopy,
)
from drivetrain_elastic._training._script_updates import as_optimizers
from drivetrain_elastic._training._state_transfer import (
    give_state,
    is_movable,
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
_BUFFERS, _FLAGS = "drivetrain.buffers", "drivetrain.flags"
_OPTIONS = "drivetrain.options"
_dtype, _version = attrgetter("dtype"), attrgetter("_version")


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
        has_state: Whether the state is that of the training, rather than a new one.
        is_torn: Whether the state is neither a new one nor that of the training, since
            it came from another rank and did not all come.
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
        self.has_state = False
        self.is_torn = False
        self.epoch = 0
        # Hooks of parameters that need not be looked at again.
        self._linear: set[object] = set()
        self.optimizers = as_optimizers(optimizer)
        _require_shapes(model)
        self._of_model = list(model.parameters())
        self._buffers = BufferCopies(model)
        # Of a step in hand, and of one that was lost.
        self._is_kept = False
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []
        self._lost: StateCopy | None = None
        # All that may have gradients, and what optimizers had when that was looked up.
        self._all: list[torch.Tensor] = []
        self._optimized: list[int] | None = None
        self.reducer = GradientReducer(self._wanted())
        self._own: dict[str, object] = {"model": model, "optimizer": self.optimizers[0]}
        for at, one in enumerate(self.optimizers[1:], 1):
            self._own[f"optimizer.{at}"] = one
        self._others = others
        self._keys = list(others)
        self._model = model
        self._dtypes = [*map(_dtype, self._all)]
        # FSDP puts other parameters in the place of its own, for a time.
        is_sharded = any(isinstance(one, DTensor) for one in self._of_model)
        kinds = ["_modules"] if is_sharded else ["_modules", "_parameters"]
        held = [getattr(one, kind) for one in model.modules() for kind in kinds]
        self._held = [one for one in held if len(one)]
        self._structure = self._look()
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
        # Of its parameters, as its parts began.
        self._versions: list[int] = []

    def entries(self) -> dict[str, Any]:
        """Returns the state, as checkpoints and other ranks take it."""
        progress = [self.step, *self.position, self.num_read]
        own = {**self._own, _SCALE: self._rate, _PROGRESS: progress}
        return {**self._given(), **own}

    def _given(self) -> dict[str, Any]:
        """Returns what the script has given beside the model and its optimizers."""
        self._require_keys()
        return {
            name: GeneratorState(one) if isinstance(one, torch.Generator) else one
            for name, one in self._others.items()
        }

    def _moved(self) -> dict[str, Any]:
        """Returns the state as other ranks take it: also what no checkpoint has."""
        trained = [one.requires_grad for one in self._all]
        modes = [one.training for one in self._model.modules()]
        flags = [trained, modes, self._lost is not None]
        return {**self.entries(), _BUFFERS: self._unsaved(), _FLAGS: flags}

    def _unsaved(self) -> dict[str, torch.Tensor]:
        """Returns the buffers that are in no state dict, if they can be written to."""
        found = {
            f"{path}.{name}": module._buffers[name]
            for path, module in self._model.named_modules()
            for name in module._non_persistent_buffers_set
        }
        return {name: one for name, one in found.items() if is_movable(one)}

    def set_entries(self, entries: Mapping[str, Any]) -> None:
        """Notes what has been put in place of the state."""
        self._set_given(entries)
        self.step, epoch, start, self.num_read, *_ = entries[_PROGRESS]
        self.position = Position(epoch, start)
        self.is_torn = False

    def _set_given(self, entries: Mapping[str, Any]) -> None:
        for name, one in self._others.items():
            if isinstance(one, list) and isinstance(entries[name], list):
                one[:] = entries[name]  # The script may hold it.
            elif not isinstance(one, torch.Generator):
                self._others[name] = entries[name]
        # Another one where its shape is another.
        for name, buffer in entries.get(_BUFFERS, {}).items():
            path, _, last = name.rpartition(".")
            self._model.get_submodule(path)._buffers[last] = buffer

    def keep(self) -> None:
        """Notes what a step that begins may change before it counts."""
        self.resume()
        self._lost = None
        self._buffers.keep()
        random = [
            one for one in self._others.values() if isinstance(one, torch.Generator)
        ]
        self._generators = [(one, one.get_state()) for one in random]
        self._is_kept = True

    def lose(self) -> None:
        """Undoes what a step has done that does not count, if one is in hand."""
        if not self._is_kept:
            return
        self._is_kept = False
        self._buffers.put_back()
        for one, state in self._generators:
            one.set_state(state)
        # In the place of gradients: it takes no more memory than they did.
        self._lost = StateCopy(self._changeable())

    def resume(self) -> None:
        """Undoes what the script has done since a step was lost, which it does again."""
        if self._lost is not None:
            state = self._changeable()
            self._lost.put_back(state)
            self._set_given(state)
            for at, group in enumerate(self._groups()):
                group.update(state[f"{_OPTIONS}.{at}"])

    def _changeable(self) -> dict[str, Any]:
        """Returns what a script may change between steps, without optimizers' tensors."""
        own = {"model": self._model, _BUFFERS: self._unsaved()}
        options = {
            f"{_OPTIONS}.{at}": {key: group[key] for key in group if key != "params"}
            for at, group in enumerate(self._groups())
        }
        return {**self._given(), **own, **options}

    def _groups(self) -> list[dict[str, Any]]:
        return [group for one in self.optimizers for group in one.param_groups]

    def digest(self) -> int:
        """Returns a number that two ranks share only if their states are equal.

        Raises:
            ProgramError: The state cannot be given to another rank.
        """
        require_movable(self._moved())
        return state_digest(self._moved())

    def compare(self, peers: ProcessGroup) -> None:
        """Finds parameters that are not the same on all ranks.

        Args:
            peers: The ranks that have the same part of the model.

        Raises:
            ProgramError: There is one.
            RankLostError: A rank is gone.
        """
        named = self._model.named_parameters()
        require_alike(named, peers, self.reducer.device, self.step)

    def begin(
        self,
        num_copies: int,
        look_for_news: Callable[[], bool],
        look_for_wish: Callable[[], bool],
    ) -> Block:
        """Begins a step, and returns its samples.

        What needs a gradient may have changed since the last one.

        Args:
            num_copies: How many copies of the model share them.
            look_for_news: Returns whether this rank has news for all others.
            look_for_wish: Returns whether it has a wish that all others are to know.
        """
        self._block = self._schedule.block(self.position, num_copies=num_copies)
        self._num_copies = num_copies
        wanted = self._wanted()
        if not self.reducer.covers(wanted):
            self.reducer.cover(wanted)
        self.reducer.begin(look_for_news, look_for_wish)
        self._versions = [*map(_version, self.reducer.parameters)]
        return self._block

    def apply(self) -> None:
        """Makes the step whose gradients are here."""
        whole = self._schedule.block(Position(), num_copies=self._num_copies).size
        if self.reducer.sums is not None:
            with self.reducer.shown():
                for one in self.optimizers:
                    self._rate.step(one, whole, self.num_read)
            self.reducer.sums = None
        self.step += 1
        self._is_kept = False
        self.num_read += self._block.size
        self.position = self._schedule.after(self._block)

    def give(self, group: ProcessGroup, to: int) -> None:
        """Sends the state to another rank."""
        give_state(group, to, self._moved())

    def take(self, group: ProcessGroup, source: int) -> None:
        """Receives the state of another rank in place of this one's."""
        self.has_state, self.is_torn = False, True
        entries = self._moved()
        take_state(group, source, entries)
        self.set_entries(entries)
        trained, modes, is_repeated = entries[_FLAGS]
        for one, is_trained in zip(self._all, trained, strict=True):
            one.requires_grad_(is_trained)
        for module, is_training in zip(self._model.modules(), modes, strict=True):
            module.training = is_training
        # What the script does before its step, it had done there before that was lost.
        self._lost = StateCopy(self._changeable()) if is_repeated else None
        self.has_state = True

    def _wanted(self) -> list[torch.Tensor]:
        """Returns what needs a gradient now: also what optimizers have beside the model."""
        optimized = [one for group in self._groups() for one in group["params"]]
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
        self._require_keys()
        self._require_same()
        held = [
            one for optimizer in self.optimizers for one in vars(optimizer).values()
        ]
        has_scaler |= any(isinstance(one, GradScaler) for one in held)
        others = self._others.values()
        if has_scaler and not any(isinstance(one, GradScaler) for one in others):
            refuse("scaler")

    def _require_keys(self) -> None:
        if list(self._others) != self._keys:
            refuse("keys", before=self._keys, now=list(self._others))

    def _look(self) -> list[object]:
        """Returns all modules and parameters of the model, from where they are held."""
        return [*chain.from_iterable(held.values() for held in self._held)]

    def _require_same(self) -> None:
        """Refuses other modules, parameters and dtypes than the loop was made with."""
        now = self._look()
        if len(now) != len(self._structure) or not all(map(is_, now, self._structure)):
            known = {*map(id, self._structure)}
            own = [*self._model.named_modules(), *self._model.named_parameters()]
            names = [name for name, one in own if name and id(one) not in known]
            refuse("replaced", names=names or "a module that was taken out")
        if [*map(_dtype, self._all)] != self._dtypes:
            for one, before in zip(self._all, self._dtypes, strict=True):
                if one.dtype != before:
                    refuse("dtype", name=self._name(one), before=before, now=one.dtype)

    def require_linear_hooks(self) -> None:
        """Refuses hooks that would see a part of the batch alone, where it has parts.

        Raises:
            ProgramError: There is one.
        """
        self.reducer.watch(self.step + 1)
        for one in self.reducer.parameters:
            for hook in (one._backward_hooks or {}).values():
                if hook in self._linear:
                    continue
                if not is_linear(hook, one):
                    refuse("hook", name=self._name(one))
                self._linear.add(hook)

    def _name(self, parameter: torch.Tensor) -> str:
        named = self._model.named_parameters()
        beside = "a parameter beside the model"
        return next((name for name, one in named if one is parameter), beside)

    def require_covered(self, *, has_peers: bool) -> None:
        """Refuses a step in which gradients were made that are not summed.

        Args:
            has_peers: Whether what this rank does to parameters differs from what others do.

        Raises:
            ProgramError: There are some, or parameters were written to in its parts.
        """
        if not self.reducer.covers(self._wanted()):
            refuse("uncovered")
        covered = self.reducer.parameters
        if has_peers and [*map(_version, covered)] != self._versions:
            for one, version in zip(covered, self._versions, strict=True):
                if one._version != version and not isinstance(one, DTensor):
                    refuse("written", name=self._name(one))

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

    def _num_optimized(self) -> int:
        return sum(len(group["params"]) for group in self._groups())


def _require_shapes(model: torch.nn.Module) -> None:
    for name, one in model.named_parameters():
        if is_lazy(one):
            refuse("no_shape", name=name)
