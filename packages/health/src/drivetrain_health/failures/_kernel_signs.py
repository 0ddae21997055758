"""What messages of the kernel mean, and what they can explain.

Only what could not be corrected counts: a machine corrects errors of its memory and of
PCIe every day. Formats are those of the Linux kernel and of its drivers.
"""

from drivetrain_health.failures._clue import Sign
from drivetrain_health.failures._failure_class import FailureClass

_GPU, _NODE = FailureClass.GPU_HARDWARE, FailureClass.NODE_HARDWARE
_LINK, _STORAGE = FailureClass.INTERCONNECT, FailureClass.STORAGE

CERTAIN = (
    Sign(r"gpu\b.{0,120}has fallen off the bus", _GPU, "gpu-lost"),
    Sign(r"nvrm: rminitadapter failed", _GPU, "gpu-unavailable"),
    Sign(r"\[hardware error\].{0,80}machine check(?! events? logged)", _NODE, "mce"),
    Sign(r"mce: .{0,40}uncorrected hardware (?:memory )?error", _NODE, "mce"),
    Sign(r"hardware memory corruption", _NODE, "memory-uncorrected"),
    Sign(
        r"memory failure: 0x[0-9a-f]+: .{0,80}(?:sending sigbus|killing)",
        _NODE,
        "memory-uncorrected",
    ),
    Sign(r"edac mc\d+: \d+ ue\b", _NODE, "memory-uncorrected"),
    Sign(r"severity[=:] ?uncorrect(?:ed|able) \(fatal\)", _NODE, "pcie-fatal"),
    Sign(r"aer: .{0,60}uncorrect\w+ \(fatal\) error", _NODE, "pcie-fatal"),
    Sign(r"\[hardware error\].{0,80}severity: fatal", _NODE, "mce"),
)
"""What is a failure of the node, whatever its workers say."""

EXPLAINING = (
    Sign(r"nvme nvme\d+: controller is down", _NODE, "disk-failed"),
    Sign(r"nvme nvme\d+: (?:device not ready|removing after)", _NODE, "disk-failed"),
    Sign(r"critical medium error, dev ", _NODE, "disk-failed"),
    Sign(r"i/o error, dev (?:nvme|sd|vd|xvd)", _NODE, "disk-failed"),
    Sign(r"(?:ext4-fs|xfs|btrfs).{0,60}(?:corrupt|i/o error)", _NODE, "disk-failed"),
    Sign(r"ext4-fs error", _NODE, "disk-failed"),
    Sign(r"mlx5_core .{0,200}health compromised", _LINK, "nic-firmware"),
    Sign(r"mlx5_core .{0,200}fatal (?:error|fw)", _LINK, "nic-firmware"),
    Sign(r"mlx5_core .{0,200}will cause a leak of a command", _LINK, "nic-firmware"),
    Sign(r"mlx5_core .{0,200}firmware internal error", _LINK, "nic-firmware"),
    Sign(r"mlx5_core .{0,200}link down", _LINK, "link-down"),
    Sign(r"nic link is down", _LINK, "link-down"),
    Sign(r"netdev watchdog: .{0,80}timed out", _LINK, "nic-timeout"),
    Sign(r"nfs: server .{0,120}not responding", _STORAGE, "nfs-not-responding", False),
    Sign(r"lustreerror: .{0,200}evicted", _STORAGE, "lustre-evicted", False),
    Sign(r"lustre: .{0,120}connection .{0,80}was lost", _STORAGE, "lustre-lost", False),
)
"""What explains how a worker ended, if it ended as such things make workers end."""

OUT_OF_MEMORY = (
    Sign(
        r"out of memory: killed process",
        FailureClass.OUT_OF_MEMORY,
        "out-of-memory-host",
    ),
    Sign(
        r"oom-kill:constraint|invoked oom-killer",
        FailureClass.OUT_OF_MEMORY,
        "out-of-memory-host",
    ),
)
"""What explains a process that was killed by nobody known."""
