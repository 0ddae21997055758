"""The entry point of torchrun's rendezvous: it loads nothing before a job asks for it.

torch reads the entry points while it is imported, so that what they name must not import
torch, and may be read while the handler's own module is half made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.elastic.rendezvous import (
        RendezvousHandler,
        RendezvousParameters,
    )


def rendezvous_creator() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Returns what makes the handler; torchrun calls this by its entry point."""

    def create(parameters: RendezvousParameters) -> RendezvousHandler:
        from drivetrain_elastic._agent._torchrun_rendezvous import create_handler

        return create_handler(parameters)

    return create
