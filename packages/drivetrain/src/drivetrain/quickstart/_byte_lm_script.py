"""Trains the byte-level language model of the main job."""

import sys

from drivetrain.quickstart._byte_lm import program
from drivetrain_core import accelerate

__all__: list[str] = []

if __name__ == "__main__":
    accelerated = accelerate(**program(sys.argv[1:]))
    for batch in accelerated.loader:
        accelerated.train_step(batch)
