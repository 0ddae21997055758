"""The clusters that ship with Drivetrain, and those of a user's own file."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path

from drivetrain_core import ClusterSpecError
from drivetrain_core.services.cluster_spec import ClusterSpec


def cluster_names() -> tuple[str, ...]:
    """Returns the names of the clusters that ship with Drivetrain.

    Example:
        >>> cluster_names()[:4]
        ('a100-40gb', 'a100-80gb', 'a100-80gb-400g', 'h100')
    """
    folder = files("drivetrain_parallel.simulate") / "clusters"
    return tuple(sorted(Path(entry.name).stem for entry in folder.iterdir()))


def is_cluster_file(name: str) -> bool:
    """Returns whether a cluster is named by the path of a file.

    Example:
        >>> is_cluster_file("h100"), is_cluster_file("ours.yaml")
        (False, True)
    """
    return name.endswith((".yaml", ".yml"))


def load_cluster(name: str) -> ClusterSpec:
    """Returns a cluster by its name, or the one that a file describes.

    Args:
        name: A name, or the path of a file that ends in `.yaml` or `.yml`.

    Raises:
        ClusterSpecError: There is no such cluster, or the file is not valid.

    Example:
        >>> load_cluster("h100").nodes[0].devices.kind
        'NVIDIA H100 80GB HBM3'
    """
    if is_cluster_file(name):
        return ClusterSpec.load(name)
    known = cluster_names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"nearest: {', '.join(near)}; " if near else ""
        message = (
            f"no cluster {name!r}; {hint}there are {', '.join(known)}, or the path of "
            "a file that ends in .yaml"
        )
        raise ClusterSpecError(message)
    file = files("drivetrain_parallel.simulate") / "clusters" / f"{name}.yaml"
    return ClusterSpec.from_yaml(file.read_text(encoding="utf-8"), f"{name}.yaml")
