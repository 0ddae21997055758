"""Meshes that deserve a trial, as the package that lays models out ranks them."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import DrivetrainError, Slot
from drivetrain_core.services import get_service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_core import Rejected
    from drivetrain_core.services import ModelLayout
    from drivetrain_search.prediction.time_model import Rates
    from drivetrain_search.process.payload import Payload
    from drivetrain_search.space import SlotSpace

logger = logging.getLogger(__name__)


class Chosen(NamedTuple):
    """A space with the meshes that are worth a trial.

    Attributes:
        space: The candidates of each slot.
        rejected: The meshes that are not among them, and why.
    """

    space: tuple[SlotSpace, ...]
    rejected: list[Rejected]


def likely_meshes(
    space: Sequence[SlotSpace], payload: Payload, rates: Rates | None
) -> Chosen:
    """Returns a space with the meshes worth a trial, and why others are none.

    Where nothing can be predicted, all stay, in their order.

    Args:
        space: The candidates of each slot.
        payload: The program and its facts.
        rates: What the device does; None if that could not be measured.
    """
    meshes = [c for entry in space if entry.slot is Slot.MESH for c in entry.candidates]
    program = payload.program
    if not meshes or rates is None or program is None:
        return Chosen(tuple(space), [])
    layout: ModelLayout = get_service("model_layout")
    try:
        ranking = layout.rank_meshes(
            meshes,
            program.build_model(),
            payload.guard_batches[0],
            program.loss_of,
            payload.context,
            rates,
        )
    except DrivetrainError as error:
        logger.info("meshes are tried in their order: %s", error)
        return Chosen(tuple(space), [])
    chosen = tuple(
        dataclasses.replace(entry, candidates=ranking.kept)
        if entry.slot is Slot.MESH
        else entry
        for entry in space
    )
    return Chosen(chosen, ranking.rejected)
