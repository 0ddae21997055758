"""The classes of failures: what they have in common is what has to follow."""

from enum import StrEnum


class FailureClass(StrEnum):
    """What kind of thing has failed.

    Example:
        >>> FailureClass("gpu-hardware")
        <FailureClass.GPU_HARDWARE: 'gpu-hardware'>
    """

    #: A GPU: lost, with memory that cannot be corrected, or in need of a reset.
    GPU_HARDWARE = "gpu-hardware"
    #: Another part of a node: its memory, a processor, PCIe, a disk.
    NODE_HARDWARE = "node-hardware"
    #: A node of which nothing is heard: power, a kernel panic, a network cut in two.
    NODE_LOST = "node-lost"
    #: What lies between a program and its device: a driver that is missing or does not fit.
    DRIVER = "driver"
    #: What connects ranks: NVLink, InfiniBand, Ethernet, and collectives that fail.
    INTERCONNECT = "interconnect"
    #: Ranks that did not find each other: a port in use, a store that does not answer.
    RENDEZVOUS = "rendezvous"
    #: Memory of the host or of a GPU that is used up.
    OUT_OF_MEMORY = "out-of-memory"
    #: A disk that is full or fails, a stale handle, a file system that does not answer.
    STORAGE = "storage"
    #: A store or service elsewhere that refuses, or does not answer.
    SERVICE = "service"
    #: What gives out machines has taken one away: preemption, a limit of time.
    SCHEDULER = "scheduler"
    #: Data that cannot be read as what it is: a file that is cut off, a checksum.
    DATA = "data"
    #: An error of the user's program, which comes again wherever it runs.
    PROGRAM = "program"
    #: A process that a signal of its own making has ended, as a segmentation fault.
    CRASH = "crash"
    #: A process that somebody else has ended.
    KILLED = "killed"
    #: A process that lives and does nothing any more.
    HANG = "hang"
    #: Numbers that are silently wrong.
    CORRUPTION = "corruption"
    #: A node that is slower than the others, which wait for it.
    STRAGGLER = "straggler"
    #: A failure that nothing explains.
    UNKNOWN = "unknown"
