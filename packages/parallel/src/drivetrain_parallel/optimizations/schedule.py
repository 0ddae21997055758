"""In which order the stages of a pipeline run forwards and backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core import Choice, Code, Config, Ok, Option, Phase, Reject, Slot
from drivetrain_parallel.optimizations.mesh_option import MeshOption, mesh_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_core import Context

_KINDS = (
    "gpipe",
    "1f1b",
    "interleaved_1f1b",
    "looped_bfs",
    "interleaved_zero_bubble",
    "zbv_zero_bubble",
    "dual_pipe_v",
)


class Schedule(MeshOption):
    """Chooses the schedule of a pipeline, and how many stages each rank has.

    Without it a pipeline runs `1f1b`, one forward and one backward in turn. The
    interleaved ones need two stages a rank or more, and those in the form of a V two.
    """

    name = "schedule"
    slot = Slot.SCHEDULE
    phase = Phase.SCHEDULE
    options = {
        "kind": Option("1f1b", choices=_KINDS),
        "stages_per_rank": Option(None, kind=int, minimum=1, optional=True),
    }
    shorthand = "kind"

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects a plan without a pipeline, and a recomputation that runs once."""
        del context
        if mesh_config(plan).get("pipeline", 1) == 1:
            return Reject(
                Code.REQUIRES,
                "there is no pipeline to schedule",
                'add ("mesh", {"pipeline": 2})',
            )
        return _fits_recomputation(str(config["kind"]), plan)


def _fits_recomputation(kind: str, plan: Sequence[Choice]) -> Ok | Reject:
    """Rejects what torch recomputes once, where a schedule needs it twice."""
    # Imported here: it takes a second, and most programs have no pipeline.
    from drivetrain_parallel.pipeline.schedules import schedule_rules

    modes = [c.config["mode"] for c in plan if c.name == "activation_checkpoint"]
    if "selective" in modes and schedule_rules(kind).splits_backward:
        return Reject(
            Code.CONFLICT,
            f"{kind} runs the gradients of weights apart from the others, and selective "
            "activation_checkpoint can be run backwards once only",
            'use ("activation_checkpoint", "full"), or another schedule',
        )
    return Ok()
