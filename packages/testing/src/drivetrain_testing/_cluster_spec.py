"""The contract of a cluster description."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core import ClusterSpecError
from drivetrain_core.extending import dump_yaml, load_yaml
from drivetrain_testing._clauses import must_raise, require

if TYPE_CHECKING:
    from drivetrain_core.services.cluster_spec import ClusterSpec


def check_cluster_spec(spec: ClusterSpec) -> None:
    """Checks that a cluster description can be written, read back and trusted.

    Args:
        spec: Any description, such as one that a discovery of hardware has made.

    Raises:
        AssertionError: A clause of the contract is broken.

    Example:
        >>> from drivetrain_core.services import local_cluster
        >>> check_cluster_spec(local_cluster())
    """
    kind = type(spec)
    text = spec.to_yaml()
    require(
        kind.from_yaml(text) == spec, "what is written is read back as an equal object"
    )
    require(
        kind.from_yaml(text).to_yaml() == text, "there is one way to write a cluster"
    )
    require(
        spec.num_nodes == sum(group.count for group in spec.nodes),
        "num_nodes counts the nodes of all groups",
    )
    require(
        spec.num_devices == sum(g.count * g.devices.count for g in spec.nodes),
        "num_devices counts the devices of all nodes",
    )
    with must_raise(ClusterSpecError, "a key that stands twice is refused"):
        kind.from_yaml(f"{text}name: again\n")
    with must_raise(ClusterSpecError, "an unknown key is refused"):
        kind.from_yaml(f"{text}colour: red\n")
    plain = load_yaml(text)
    require(isinstance(plain, dict), "the file holds a mapping")
    assert isinstance(plain, dict)
    for version in (0, 2, "1", True):
        with must_raise(ClusterSpecError, f"version {version!r} is refused"):
            kind.from_yaml(dump_yaml({**plain, "drivetrain_cluster": version}))
    nodes = [{**plain["nodes"][0], "count": -1}]
    with must_raise(ClusterSpecError, "a negative number is refused"):
        kind.from_yaml(dump_yaml({**plain, "nodes": nodes}))
    nodes = [{**plain["nodes"][0], "memory": 1024}]
    with must_raise(ClusterSpecError, "a quantity without a unit is refused"):
        kind.from_yaml(dump_yaml({**plain, "nodes": nodes}))
