"""What a save costs in a folder of many checkpoints, beside the same in one of few."""

import dataclasses
import os
import statistics
import time
from pathlib import Path

import torch
from workload import MIB, new_place, timed

from drivetrain_checkpoint import Checkpointer, Keep
from drivetrain_checkpoint._layout.manifest import ROOT_FILE, RootManifest
from drivetrain_testing import Row

_FEW = 10
_STATE_BYTES = 32 * MIB


def kept_steps(num_many, most):
    """A small save with many steps kept, until it is durable, in saves with ten kept.

    Args:
        num_many: How many are kept.
        most: The bound, of the cost with ten.
    """

    def measure(quick):
        with new_place() as place:
            places = {num: place.folder / f"{num}" for num in (_FEW, num_many)}
            filled = {num: _filled(folder, num) for num, folder in places.items()}
            state = {"w": torch.zeros(_STATE_BYTES // 4)}
            times = {num: [] for num in places}
            for step in range(15 if quick else 60):
                for num in sorted(places, reverse=bool(step % 2)):
                    save = filled[num].save
                    times[num].append(timed(lambda: save(10**6 + step, state).wait()))  # noqa: B023
                    # What is deleted then is no part of the other's next save.
                    while len(os.listdir(places[num])) > num:  # noqa: PTH208
                        time.sleep(0.001)
            theirs, ours = times.values()
        # The first makes the memory, and reads the folder.
        ours, theirs = ours[3:], theirs[3:]
        # The fastest quarter: the others wait for what the disk has to do besides.
        mine, peer = (statistics.quantiles(times)[0] for times in (ours, theirs))
        found = mine / peer
        return Row(
            figure=f"{found:.2f} x ({mine * 1e3:.0f} ms)",
            holds=found <= most,
            details={"ours_s": ours, "theirs_s": theirs},
        )

    return measure


def _filled(folder, num):
    """Returns a checkpointer whose folder has as many checkpoints as it keeps."""
    checkpointer = Checkpointer(folder, job="kept", keep=Keep(last=num))
    checkpointer.save(0, {"w": torch.zeros(10)}).wait()
    (first,) = Path(folder).glob("step-*")
    text = (first / ROOT_FILE).read_bytes()
    root = RootManifest.from_bytes(text, ROOT_FILE)
    born = int(root.save_id, 16) - num
    for step in range(1, num):
        save_id = f"{born + step:016x}"
        old = dataclasses.replace(
            root, step=step, save_id=save_id, saved_at_ns=root.saved_at_ns - num + step
        )
        place = Path(folder) / f"step-{step:010d}-{save_id}"
        place.mkdir()
        (place / ROOT_FILE).write_bytes(old.to_bytes())
    return checkpointer
