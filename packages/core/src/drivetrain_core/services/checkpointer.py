"""What saves the state of a run and brings it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping


@runtime_checkable
class SaveHandle(Protocol):
    """One save, which may still be on its way to the disk.

    It may be read from any thread.

    Attributes:
        step: The step that was saved.
    """

    step: int

    @property
    def done(self) -> bool:
        """Whether nothing more will happen: it is durable, or it failed."""

    @property
    def durable(self) -> bool:
        """Whether the checkpoint would survive the loss of every process."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the save is durable.

        Args:
            timeout_s: The longest wait in seconds; None is without limit.

        Returns:
            Whether it is durable; False when the time was up.

        Raises:
            CheckpointError: The save failed.
        """


@runtime_checkable
class Checkpointer(Protocol):
    """Saves the whole state of a run as one record, and restores it exactly.

    `save` and `restore` are called by every rank, in the same order, between steps. The
    state is a mapping from names to models, optimizers, tensors, objects with
    `state_dict` and `load_state_dict`, and plain data. Sharded tensors (DTensor) may be
    restored onto another number of ranks; whatever is no tensor must be equal on all
    ranks. The position in the data is one of the entries, so that it is exactly as old
    as the model.
    """

    def save(self, step: int, state: Mapping[str, object]) -> SaveHandle:
        """Saves a state; a crash at any moment leaves the earlier ones whole.

        When it returns, the state may be changed again.

        Args:
            step: The number of steps that the state has seen. Saving a step again
                replaces it.
            state: What to save, by name.

        Raises:
            CheckpointError: The state could not be written, on any of the ranks.
            TypeError: The state holds what a checkpoint cannot.
            ValueError: The step is negative, or the ranks' plain data differ.
            NamesError: Two tensors have one name.
        """

    def restore(
        self,
        into: MutableMapping[str, object],
        step: int | None = None,
        *,
        strict: bool = True,
    ) -> int:
        """Restores a state in place.

        Args:
            into: Models, optimizers, tensors and objects to load into, by the names
                they were saved under; plain data under a name is replaced. Names that
                were saved but are not here are left out.
            step: The step to restore; by default the one that was saved last.
            strict: Whether all of `into` has to fit. Otherwise what fits is restored,
                and what does not is left as it is and logged as a warning, all of it;
                `plan_restoration` says what is restored by itself and what as a whole.

        Returns:
            The step that was restored.

        Raises:
            CheckpointError: There is none, it is partial or damaged, or it does not
                fit; then its `mismatches` are all that does not. Unless a read fails
                midway, nothing has been changed.
        """

    def flush(self, deadline_s: float | None = None) -> bool:
        """Waits until every save so far is durable.

        Args:
            deadline_s: When to stop waiting, as `time.monotonic()` counts; the
                deadline of a `CapacityNotice`, for one. None is without limit.

        Returns:
            Whether all are durable.

        Raises:
            CheckpointError: A save has failed that no handle has reported yet.
        """

    def latest(self) -> int | None:
        """Returns the step that was saved last and is durable, or None."""
