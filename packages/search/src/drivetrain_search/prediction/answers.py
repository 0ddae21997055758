"""Answers of the estimator: rates of a device, and the structure of a fake run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core import Choice, register
from drivetrain_search.prediction.fake_mode import read_fake
from drivetrain_search.prediction.fake_run import FakeRuns
from drivetrain_search.prediction.probes import measure_rates

if TYPE_CHECKING:
    from collections.abc import Mapping


def prepared(spec: Mapping[str, Any]) -> FakeRuns:
    """Returns the runs of a program, with what its user registered by hand."""
    torch.set_num_threads(spec["num_threads"])
    for optimization in read_fake(spec["payload"]).optimizations:
        register(optimization)
    return FakeRuns(spec["payload"])


def rates_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rates of a device, as JSON has them."""
    rates = measure_rates(torch.device(request["device"]), request["num_threads"])
    return {"rates": dataclasses.asdict(rates)}


def structure_of(request: Mapping[str, Any], runs: FakeRuns) -> dict[str, Any]:
    """Returns the structure of a plan, as JSON has it."""
    choices = [Choice(name, config) for name, config in request["choices"]]
    structure = runs.structure(choices, request["sizes"], request["whole"])
    return {"structure": structure}
