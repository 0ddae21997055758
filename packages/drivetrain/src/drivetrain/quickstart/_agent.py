"""Runs the agent of the training with a kill; it ends with the process that started it.

Run by `python -m drivetrain.quickstart._agent PARENT SPEC`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.quickstart._elastic_spec import ElasticSpec
from drivetrain_checkpoint import Checkpointer
from drivetrain_core import cli
from drivetrain_core.processes import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `drivetrain elastic run`; returns its exit status.

    Args:
        argv: The number of the parent, and the path of an `ElasticSpec`; None for those of
            the process.
    """
    parent, path = sys.argv[1:] if argv is None else argv
    spec = ElasticSpec.load(Path(path))
    # Asked to end, an agent ends its workers. Their daemon would wait for others.
    end_with_parent(int(parent), signal.SIGTERM)
    command = ["elastic", "run", "--standalone"]
    command += ["--nproc-per-node", str(spec.num_workers)]
    command += ["--standbys", str(spec.num_standbys)]
    try:
        return cli.main([*command, "-m", "drivetrain.quickstart._worker", path])
    finally:
        if os.getppid() != int(parent):
            Checkpointer(spec.folder / "checkpoints", job=spec.job).stop_daemon()


if __name__ == "__main__":
    sys.exit(main())
