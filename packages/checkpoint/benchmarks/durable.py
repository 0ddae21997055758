"""The time until a save is on the disk, in direct writes of as many bytes."""

from pathlib import Path

from limits import Area, direct_write
from workload import (
    NUM_THREADS,
    make_state,
    milliseconds,
    new_place,
    ratio,
    settle,
    sized,
    timed,
)

from drivetrain_checkpoint import Checkpointer
from drivetrain_testing import Row


def durable(size_mib, most):
    """From the call of `save` to the end of `wait`, both with everything synced.

    Args:
        size_mib: The size of the state; a quick form takes an eighth.
        most: The bound.
    """

    def measure(quick):
        size = sized(size_mib, quick)
        state = make_state(size)
        area = Area(size)
        saves, raws = [], []
        with new_place() as place:
            checkpointer = Checkpointer(
                place.folder / "run", job="durable", keep=1, num_threads=NUM_THREADS
            )
            raw = Path(place.folder, "raw")

            def save(step):
                checkpointer.save(step, {"state": state}).wait()

            for step in range(2):
                save(step)
            for step in range(2, 6 if quick else 9):
                settle()
                raws.append(timed(lambda: direct_write(raw, area)))
                raw.unlink()
                settle()
                saves.append(timed(lambda step=step: save(step)))
        found = ratio(saves, raws)
        return Row(
            figure=f"{found:.2f} x ({milliseconds(saves)}; {milliseconds(raws)})",
            holds=found <= most,
            details={"size_bytes": size, "saves_s": saves, "writes_s": raws},
        )

    return measure
