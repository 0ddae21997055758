"""What messages of the kernel mean, and what they can explain: `kernel_signs.toml`."""

from drivetrain_health.failures._clue import read_signs

CERTAIN = read_signs("kernel_signs.toml", "certain")
"""What is a failure of the node, whatever its workers say."""

EXPLAINING = read_signs("kernel_signs.toml", "explaining")
"""What explains how a worker ended, if it ended as such things make workers end."""

OUT_OF_MEMORY = read_signs("kernel_signs.toml", "out_of_memory")
"""What explains a process that was killed by nobody known."""
