"""The store of a master, at which nodes that are checked meet."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from drivetrain_core.commands import as_wrong_use
from drivetrain_elastic._client._master_client import MasterClient, address_and_token
from drivetrain_elastic._client._master_store import MasterStore
from drivetrain_elastic._client._token import read_token

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

# How long a master may be away.
_PATIENCE_S = 10.0


@contextlib.contextmanager
def store_at_master(arguments: argparse.Namespace) -> Iterator[MasterStore]:
    """Yields the store of the master that the arguments name.

    Args:
        arguments: Of the command `check`.
    """
    token = read_token(arguments.token_file) if arguments.token_file else None
    with as_wrong_use(arguments):
        where = address_and_token(arguments.rdzv_endpoint, token)
    with MasterClient(*where, patience_s=_PATIENCE_S) as client:
        yield MasterStore(client)
