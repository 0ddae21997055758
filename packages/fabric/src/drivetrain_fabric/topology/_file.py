"""The JSON form of a topology, with its version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core.commands import reason_of
from drivetrain_core.strict_json import unique_keys
from drivetrain_fabric.topology._errors import TopologyError
from drivetrain_fabric.topology._graph import Topology
from drivetrain_fabric.topology._json import from_plain, to_plain

if TYPE_CHECKING:
    import os

_VERSION = 1
_HEADER = "drivetrain_topology"


def topology_to_json(topology: Topology) -> str:
    """Returns the text of a file that describes a host.

    Args:
        topology: The host.

    Example:
        >>> from drivetrain_fabric.topology import NumaNode
        >>> text = topology_to_json(
        ...     Topology(name="a", numa_nodes=(NumaNode(index=0),)))
        >>> topology_from_json(text).name
        'a'
    """
    return json.dumps({_HEADER: _VERSION, **to_plain(topology)}, indent=2)


def topology_from_json(text: str, source: str = "topology") -> Topology:
    """Returns the host that a text describes.

    Args:
        text: The text of a file.
        source: What to call it in errors.

    Raises:
        TopologyError: It is not a valid description; the message says where.
    """
    try:
        plain = json.loads(text, object_pairs_hook=unique_keys)
    # A number of very many digits is a ValueError too.
    except (ValueError, RecursionError) as error:
        message = f"{source}: it is no JSON: {error}"
        raise TopologyError(message) from error
    if not isinstance(plain, dict) or _HEADER not in plain:
        message = f'{source}: it must be an object with "{_HEADER}": {_VERSION}'
        raise TopologyError(message)
    version = plain.pop(_HEADER)
    if type(version) is not int or version != _VERSION:
        message = (
            f"{source}: {_HEADER} is {version!r}, this version of Drivetrain reads "
            f"{_VERSION}"
        )
        raise TopologyError(message)
    try:
        return from_plain(Topology, plain)
    except TopologyError as error:
        message = f"{source}: {error}"
        raise TopologyError(message) from error


def load_topology(path: str | os.PathLike[str]) -> Topology:
    """Returns the host that a file describes.

    Args:
        path: The file.

    Raises:
        TopologyError: It cannot be read, or is not a valid description.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path}: it cannot be read: {reason_of(error)}"
        raise TopologyError(message) from error
    return topology_from_json(text, str(path))
