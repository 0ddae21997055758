"""Measures on this machine what the meta package claims."""

from __future__ import annotations

import subprocess
import sys

from drivetrain_testing import Bar, Row, run_bars


def light_import(quick):
    """How many modules of torch a fresh interpreter loads to tell all versions."""
    code = (
        "import sys, drivetrain; found = drivetrain.versions(); "
        "heavy = [n for n in sys.modules if n.split('.')[0] == 'torch']; "
        "print(len(heavy), 'drivetrain' in found and 'torch' in found)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    num_modules, complete = done.stdout.split()
    holds = num_modules == "0" and complete == "True"
    return Row(figure=f"{num_modules} modules of torch", holds=holds)


BARS = [Bar(name="versions-without-torch", bound="0", measure=light_import)]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
