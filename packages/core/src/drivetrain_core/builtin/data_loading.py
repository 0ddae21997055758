"""Data loading: worker processes, pinned memory, prefetching."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core._choice import Ok, Option, Phase, Reject, Slot
from drivetrain_core._data.loader import rebuild_loader
from drivetrain_core._errors import Code
from drivetrain_core._optimization import BaseOptimization, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core._choice import Choice, Config
    from drivetrain_core._context import Context
    from drivetrain_core._state import TrainingState


class DataLoading(BaseOptimization):
    """Rebuilds a `DataLoader` with other workers, pinning and prefetching.

    The samples and their order stay the same.
    """

    name = "data_loading"
    slot = Slot.LOADER
    phase = Phase.DATA
    options = {
        "workers": Option(1, minimum=0),
        "pin_memory": Option(default=False),
        "prefetch_factor": Option(2, minimum=1),
    }
    shorthand = "workers"
    saves_from = "data"

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns one worker and half of the cores, pinned for an accelerator."""
        if context.loop.loader != "torch" or not context.loop.sample_on_host:
            return []
        share = context.device.num_cores // context.world.local_size
        pin = context.device.pinned_memory
        counts = sorted({1, max(1, share // 2)} - {context.loop.loader_workers})
        return [
            self.normalize({"workers": count, "pin_memory": pin}) for count in counts
        ]

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects loaders that cannot be rebuilt, and pinning without a device."""
        del plan
        workers, loop = config["workers"], context.loop
        if loop.loader != "torch":
            return Reject(
                Code.NOT_APPLICABLE,
                "the data is no plain torch.utils.data.DataLoader",
                "pass a DataLoader with a map-style dataset",
            )
        if workers and loop.open_handle and not loop.loader_workers:
            return Reject(
                Code.CONFLICT,
                f"the data set holds an open {loop.open_handle}, whose position forked workers "
                "share, so that they would read one another's samples",
                "open it in __getitem__, when a worker first needs it",
            )
        if config["pin_memory"] and not context.device.pinned_memory:
            because = f"{context.device.name} has no use for pinned memory"
            return Reject(Code.NEEDS_DEVICE, because)
        return Ok()

    def apply(self, state: TrainingState, config: Config) -> None:
        """Replaces the loader by an equal one with the new settings.

        Workers do not outlive a pass unless the user said so: others would not see what
        the loop changes in the data set.
        """
        workers = whole_number(config, "workers")
        state.loader = rebuild_loader(
            state.loader,
            num_workers=workers,
            pin_memory=bool(config["pin_memory"]),
            prefetch_factor=whole_number(config, "prefetch_factor")
            if workers
            else None,
        )
