"""Types of options that take addresses of masters."""

from __future__ import annotations

import argparse

from drivetrain_core import ProgramError
from drivetrain_elastic._client._address import split_address, split_addresses


def address(text: str) -> str:
    """Returns where a server is to listen, if it is an address."""
    try:
        split_address(text)
    except ProgramError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def addresses(text: str) -> str:
    """Returns where masters are, one or several with commas, if they are addresses."""
    try:
        split_addresses(text)
    except ProgramError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
