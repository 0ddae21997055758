"""A cluster and a model for the tests of the cost model."""

from __future__ import annotations

import dataclasses

from drivetrain_parallel.cost import (
    Efficiency,
    Hardware,
    Path,
    StepOptions,
    profile_transformer,
)

PERFECT = Efficiency(
    matmul=1.0,
    attention=1.0,
    memory=1.0,
    eager=1.0,
    link=1.0,
    network=1.0,
    contention=0.0,
    straggling=0.0,
    launch_s=0.0,
)


def nodes(**changes):
    """Nodes of eight devices, from which programs get all that there is."""
    hardware = Hardware(
        name="test",
        devices_per_node=8,
        peak_flops={"bfloat16": 100e12},
        memory_bytes=80 * 2**30,
        memory_bandwidth=2e12,
        link=Path(bytes_per_s=100e9),
        network=Path(bytes_per_s=10e9),
        efficiency=PERFECT,
    )
    return dataclasses.replace(hardware, **changes)


def model(**changes):
    """A model of a quarter of a billion parameters."""
    sizes = {
        "layers": 16,
        "hidden": 1024,
        "heads": 16,
        "vocab": 32000,
        "seq": 1024,
        **changes,
    }
    return profile_transformer(**sizes)


def options(**changes):
    """A batch of 64 samples."""
    return StepOptions(**{"global_batch": 64, **changes})
