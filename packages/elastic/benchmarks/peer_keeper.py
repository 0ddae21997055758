"""Starts the processes of a job, and kills them all when its standard input ends.

It ends however the program that measures ends, so nothing is left behind: not a process
in a session of its own, nor one that was stopped. Each line of input is a command as
JSON; the answer is the process's number.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def reap(*_):
    while True:
        try:
            pid, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def main():
    # Whose parent has died becomes a child of this process.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, reap)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started = []
    try:
        for line in sys.stdin:
            wanted = json.loads(line)
            with Path(wanted["output"]).open("ab") as output:
                process = subprocess.Popen(
                    wanted["command"],
                    env=wanted["env"],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            started.append(process)
            print(process.pid, flush=True)
    finally:
        while children := psutil.Process().children(recursive=True):
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            time.sleep(0.02)


if __name__ == "__main__":
    main()
