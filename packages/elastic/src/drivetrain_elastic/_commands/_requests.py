"""The commands that change a job: leave, stop and readmit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core.commands import as_wrong_use
from drivetrain_elastic._client._address import split_addresses
from drivetrain_elastic._client._master_client import MasterClient, address_and_token
from drivetrain_elastic._client._tls import channel_credentials
from drivetrain_elastic._client._token import read_token
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    import argparse


def client_of(arguments: argparse.Namespace) -> MasterClient:
    """Returns a client of the master that the arguments name."""
    token = read_token(arguments.token_file) if arguments.token_file else None
    with as_wrong_use(arguments):
        address, token = address_and_token(arguments.address, token)
        split_addresses(address)
    tls = channel_credentials(arguments.tls_ca)
    return MasterClient(address, token, patience_s=5.0, tls=tls)


def leave(arguments: argparse.Namespace) -> int:
    """Lets a node go at the end of a step."""
    request = pb.LeaveRequest(
        node=arguments.node, within_s=arguments.within_s, reason=arguments.reason
    )
    with client_of(arguments) as client:
        client.call("Leave", request)
    return 0


def readmit(arguments: argparse.Namespace) -> int:
    """Lets a machine that was excluded take part again."""
    with client_of(arguments) as client:
        client.call("Readmit", pb.ReadmitRequest(machine=arguments.machine))
    return 0


def stop(arguments: argparse.Namespace) -> int:
    """Ends the job."""
    with client_of(arguments) as client:
        client.call("Stop", pb.StopRequest(reason=arguments.reason))
    return 0
