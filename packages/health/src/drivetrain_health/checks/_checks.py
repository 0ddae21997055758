"""The checks that there are, and where each of them is."""

from __future__ import annotations

from typing import NamedTuple


class Check(NamedTuple):
    """One check of a node.

    Attributes:
        home: The module of this package whose `measure` makes it.
        says: What it measures, for people.
        is_paired: Whether it takes other nodes.
        uses_gpu: Whether it is skipped without a GPU; one that uses it has no limit of its
            memory, since drivers reserve far more than they take.
        patience: How many times the limit of a check it may take, since it goes over many
            paths; each of them has a limit of its own.
    """

    home: str
    says: str
    is_paired: bool = False
    uses_gpu: bool = False
    patience: int = 1


CHECKS = {
    "compute": Check("_compute", "matrix products on the CPU"),
    "memory": Check("_memory", "copies in memory"),
    "loopback": Check("_loopback", "TCP within the node"),
    "disk": Check("_disk", "a file written, synced and read"),
    "nic": Check("_nic", "links of RDMA devices"),
    "rdma": Check(
        "_rdma",
        "RDMA from each device to memory, GPUs and the other devices of the node",
        uses_gpu=True,
        patience=4,
    ),
    "gpu_compute": Check("_gpu_compute", "matrix products on each GPU", uses_gpu=True),
    "gpu_copy": Check("_gpu_copy", "copies to and from each GPU", uses_gpu=True),
    "gpu_all_to_all": Check(
        "_gpu_all_to_all", "copies between all GPUs of the node", uses_gpu=True
    ),
    "bits": Check("_bits", "whether a fixed computation makes the same bits"),
    "bits_gpu": Check("_bits_gpu", "the same, on each GPU", uses_gpu=True),
    "exchange": Check("_exchange", "collectives with other nodes", is_paired=True),
    "gpu_exchange": Check(
        "_gpu_exchange",
        "collectives between GPUs of nodes",
        is_paired=True,
        uses_gpu=True,
    ),
}
"""All checks by their names, in the order in which they are made."""
