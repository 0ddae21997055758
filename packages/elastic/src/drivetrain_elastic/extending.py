"""What packages that stand on elastic are built with, and scripts have no need of.

Membership: `Seat` is the place of a worker in one world, `LoneSeat` that of a process
without an agent; `Connection`, from `connect()`, is a worker's line to its agent; a `World`
is who trains together from one change to the next. Masters: `MasterClient` calls one;
tokens say who may. `Rarely` says when words that come again and again are due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain_elastic._client import MasterClient
    from drivetrain_elastic._connection import Connection, connect
    from drivetrain_elastic._fit import require_elastic
    from drivetrain_elastic._group import RankLostError, with_others
    from drivetrain_elastic._lone_seat import LoneSeat
    from drivetrain_elastic._options import addresses
    from drivetrain_elastic._order import epoch_order, part_of_rank
    from drivetrain_elastic._rarely import Rarely
    from drivetrain_elastic._seat import Seat
    from drivetrain_elastic._secret import make_token, read_token, write_token
    from drivetrain_elastic._transfer import give_state, take_state
    from drivetrain_elastic._world import World, call_roll, is_finished, tell_finished

__all__ = [
    "Connection",
    "LoneSeat",
    "MasterClient",
    "RankLostError",
    "Rarely",
    "Seat",
    "World",
    "addresses",
    "call_roll",
    "connect",
    "epoch_order",
    "give_state",
    "is_finished",
    "make_token",
    "part_of_rank",
    "read_token",
    "require_elastic",
    "take_state",
    "tell_finished",
    "with_others",
    "write_token",
]

_HOMES = {
    "Connection": "_connection",
    "LoneSeat": "_lone_seat",
    "MasterClient": "_client",
    "RankLostError": "_group",
    "Rarely": "_rarely",
    "Seat": "_seat",
    "World": "_world",
    "addresses": "_options",
    "call_roll": "_world",
    "connect": "_connection",
    "epoch_order": "_order",
    "give_state": "_transfer",
    "is_finished": "_world",
    "make_token": "_secret",
    "part_of_rank": "_order",
    "read_token": "_secret",
    "require_elastic": "_fit",
    "take_state": "_transfer",
    "tell_finished": "_world",
    "with_others": "_group",
    "write_token": "_secret",
}


def __getattr__(name: str) -> Any:
    """Imports what needs torch when it is first used."""
    return _load_export(__name__, _HOMES, name, "drivetrain_elastic")


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)
