"""The overlap of FSDP2's first all-gathers with data loading, as an optimization."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core import BaseOptimization, Code, Ok, Option, Phase, Reject, Slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core import Choice, Config, Context, TrainingState


class OverlapFirstGatherOptimization(BaseOptimization):
    """Gathers the first parameters of FSDP while the next batch is loaded.

    `num_blocks` says how many blocks below the root are gathered early. The numbers are
    exactly those of `fsdp` alone.

    Example:
        >>> OverlapFirstGatherOptimization().normalize(2)
        {'num_blocks': 2}
    """

    name = "overlap_first_gather"
    slot = Slot.COMM
    # After the loader is rebuilt, and after the parameters are sharded.
    phase = Phase.RUNTIME
    requires = ("fsdp",)
    options = {"num_blocks": Option(1, minimum=0)}
    shorthand = "num_blocks"
    saves_from = "data"

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns the defaults where there are ranks to gather from."""
        return [self.normalize(None)] if context.world.size > 1 else []

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects a single rank: there is nothing to gather."""
        del config, plan
        if context.world.size == 1:
            return Reject(
                Code.NEEDS_WORLD,
                "there is one rank, and no parameters to gather from others",
                "launch with torchrun, and call drivetrain_core.init_process_group()",
            )
        return Ok()

    def apply(self, state: TrainingState, config: Config) -> None:
        """Wraps the loader."""
        from drivetrain_parallel.overlap._first_unshard import prefetch_first_unshard

        num_blocks = config["num_blocks"]
        assert isinstance(num_blocks, int)
        state.loader = prefetch_first_unshard(
            state.module, state.loader, num_blocks=num_blocks
        )
