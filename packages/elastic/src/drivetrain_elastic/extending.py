"""What packages that stand on elastic are built with, and scripts have no need of.

Membership: a `RankAssignment` holds the ranks of one world for a worker, and
`SingleProcessMembership` assigns them to a process without an agent; `Connection`, from
`connect()`, has the membership of a worker and the store of its job; a `World` is the set of
ranks of one membership epoch, with its process groups. Masters: `MasterClient` calls one;
tokens say who may. `RateLimitedLog` says when a message that is repeated is due.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain_elastic._agent._require_elastic import require_elastic
    from drivetrain_elastic._client._master_client import MasterClient
    from drivetrain_elastic._client._token import make_token, read_token, write_token
    from drivetrain_elastic._commands._address_options import addresses
    from drivetrain_elastic._data._epoch_order import epoch_order, part_of_rank
    from drivetrain_elastic._membership._connection import Connection, connect
    from drivetrain_elastic._membership._rank_assignment import RankAssignment
    from drivetrain_elastic._membership._single_process import SingleProcessMembership
    from drivetrain_elastic._membership._world import (
        World,
        call_roll,
        is_finished,
        tell_finished,
    )
    from drivetrain_elastic._membership._world_group import RankLostError, with_others
    from drivetrain_elastic._observability._rate_limited_log import RateLimitedLog
    from drivetrain_elastic._training._state_transfer import give_state, take_state

__all__ = [
    "Connection",
    "MasterClient",
    "RankAssignment",
    "RankLostError",
    "RateLimitedLog",
    "SingleProcessMembership",
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
    "Connection": "_membership._connection",
    "SingleProcessMembership": "_membership._single_process",
    "MasterClient": "_client._master_client",
    "RankLostError": "_membership._world_group",
    "RateLimitedLog": "_observability._rate_limited_log",
    "RankAssignment": "_membership._rank_assignment",
    "World": "_membership._world",
    "addresses": "_commands._address_options",
    "call_roll": "_membership._world",
    "connect": "_membership._connection",
    "epoch_order": "_data._epoch_order",
    "give_state": "_training._state_transfer",
    "is_finished": "_membership._world",
    "make_token": "_client._token",
    "part_of_rank": "_data._epoch_order",
    "read_token": "_client._token",
    "require_elastic": "_agent._require_elastic",
    "take_state": "_training._state_transfer",
    "tell_finished": "_membership._world",
    "with_others": "_membership._world_group",
    "write_token": "_client._token",
}


# Names of version 0.1, which go away in the next one.
_RENAMED = {
    "LoneSeat": "SingleProcessMembership",
    "Rarely": "RateLimitedLog",
    "Seat": "RankAssignment",
}


def __getattr__(name: str) -> Any:
    """Imports what needs torch when it is first used."""
    if name in _RENAMED:
        message = f"{__name__}.{name} is now {_RENAMED[name]}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    return _load_export(__name__, _HOMES, name, "drivetrain_elastic")


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)
