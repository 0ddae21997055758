"""A worker of the byte-level model; the devices of the first one are lost in its course."""

import os
import sys
from pathlib import Path

import torch
from drivetrain_simulated_accelerator import control
from torch.optim.optimizer import register_optimizer_step_post_hook

from drivetrain_elastic.examples import byte_lm

LOST_AT = 6


def lose_devices(mark):
    """Loses them within a step of one process of the job."""
    num_steps = 0

    def count(*_):
        nonlocal num_steps
        num_steps += 1
        if num_steps == LOST_AT:
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            for index in range(torch.sim.device_count()):
                control.lose(index)

    register_optimizer_step_post_hook(count)


if __name__ == "__main__":
    lose_devices(Path(sys.argv[1]))
    sys.exit(byte_lm.main(sys.argv[2:]))
