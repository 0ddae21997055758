"""The classes of failures: what they have in common is what has to follow."""

from enum import StrEnum


class FailureClass(StrEnum):
    """What kind of thing has failed.

    Example:
        >>> FailureClass("gpu-hardware")
        <FailureClass.GPU_HARDWARE: 'gpu-hardware'>
    """

    GPU_HARDWARE = "gpu-hardware"
    """A GPU: lost, with memory that cannot be corrected, or in need of a reset."""
    NODE_HARDWARE = "node-hardware"
    """Another part of a node: its memory, a processor, PCIe, a disk."""
    NODE_LOST = "node-lost"
    """A node of which nothing is heard: power, a kernel panic, a network cut in two."""
    DRIVER = "driver"
    """What lies between a program and its device: a driver that is missing or does not fit."""
    INTERCONNECT = "interconnect"
    """What connects ranks: NVLink, InfiniBand, Ethernet, and collectives that fail."""
    RENDEZVOUS = "rendezvous"
    """Ranks that did not find each other: a port in use, a store that does not answer."""
    OUT_OF_MEMORY = "out-of-memory"
    """Memory of the host or of a GPU that is used up."""
    STORAGE = "storage"
    """A disk that is full or fails, a stale handle, a file system that does not answer."""
    SERVICE = "service"
    """A store or service elsewhere that refuses, or does not answer."""
    SCHEDULER = "scheduler"
    """What gives out machines has taken one away: preemption, a limit of time."""
    DATA = "data"
    """Data that cannot be read as what it is: a file that is cut off, a checksum."""
    PROGRAM = "program"
    """An error of the user's program, which comes again wherever it runs."""
    CRASH = "crash"
    """A process that a signal of its own making has ended, as a segmentation fault."""
    KILLED = "killed"
    """A process that somebody else has ended."""
    HANG = "hang"
    """A process that lives and does nothing any more."""
    CORRUPTION = "corruption"
    """Numbers that are silently wrong."""
    STRAGGLER = "straggler"
    """A node that is slower than the others, which wait for it."""
    UNKNOWN = "unknown"
    """A failure that nothing explains."""
