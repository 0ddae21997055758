"""Trains the byte-level language model of the main job."""

import sys

from drivetrain.quickstart._byte_lm import train

__all__: list[str] = []

if __name__ == "__main__":
    train(sys.argv[1:])
