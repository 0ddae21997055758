"""Keeps a slow resolver out of the measurement, as the resolver check advises."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from drivetrain_testing import Row

_INSIDE = "DRIVETRAIN_BENCHMARK_HOSTS"
_LINE = "::ffff:127.0.0.1 localhost"
_MOUNT = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'


def with_hosts_line(measure):
    """Runs a measurement where /etc/hosts has the line that torch's lookups need.

    That takes a mount namespace, and so root; elsewhere a lookup is cut short instead,
    and details say so.
    """

    @functools.wraps(measure)
    def wrapped(quick):
        if os.environ.get(_INSIDE):
            return measure(quick)
        with tempfile.TemporaryDirectory() as folder:
            hosts = Path(folder, "hosts")
            hosts.write_text(f"{Path('/etc/hosts').read_text()}\n{_LINE}\n")
            command = [sys.executable, __file__, measure.__name__, str(int(quick))]
            prefix = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", str(hosts)]
            can_mount = (
                shutil.which("unshare")
                and not subprocess.run(
                    [*prefix, "true"], capture_output=True, check=False
                ).returncode
            )
            known = "hosts line" if can_mount else "RES_OPTIONS"
            environment = {
                **os.environ,
                _INSIDE: known,
                "RES_OPTIONS": "timeout:1 attempts:1",
            }
            command = [*prefix, *command] if can_mount else command
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, env=environment
            )
        row = json.loads(done.stdout.splitlines()[-1])
        row["details"]["resolver"] = known
        return Row(**row)

    return wrapped


if __name__ == "__main__":
    name, is_quick = sys.argv[1:]
    found = getattr(import_module("startup"), name)(is_quick == "1")
    print(json.dumps(asdict(found)))
