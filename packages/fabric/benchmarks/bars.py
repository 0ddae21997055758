"""Measures on this machine what drivetrain-fabric claims, against stated bounds."""

from __future__ import annotations

import sys

import network

from drivetrain_testing import Bar, run_bars

BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in network.BARS]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
