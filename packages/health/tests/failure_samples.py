"""Reads the samples of failures as evidence."""

import json
from pathlib import Path

from drivetrain_health.failures import Evidence, GpuReading, Health, NicReading

HERE = Path(__file__).parent / "data" / "failures"
_MADE = {"class", "cause", "blames_node", "exit_code", "output", "kernel", "gpus"}


def load(name):
    """Returns the samples of a file, by name."""
    return json.loads((HERE / f"{name}.json").read_text())


def evidence_of(sample, *, worker="n1/0", node="n1"):
    """Returns a sample as the evidence of a worker."""
    more = {key: value for key, value in sample.items() if key not in _MADE}
    more["network"] = tuple(NicReading(**one) for one in more.get("network", ()))
    if "health" in more:
        more["health"] = Health(more["health"])
    return Evidence(
        worker=worker,
        node=node,
        exit_code=sample["exit_code"],
        output="\n".join(sample["output"]),
        kernel=tuple(sample["kernel"]),
        gpus=tuple(GpuReading(**one) for one in sample.get("gpus", ())),
        **more,
    )
