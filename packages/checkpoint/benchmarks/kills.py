"""What is left of a save when its trainer is killed soon after the save returned."""

import contextlib
import signal
import subprocess
import time
from pathlib import Path

from methods import method_of
from programs import answer, command_of, last_words, node
from workload import new_place

DELAYS_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
_ORPHANS_S = 15.0
_LONGEST_S = 300


def kill_trials(name, size_mib, delays_s=DELAYS_S):
    """Kills a trainer after each delay, and loads in a new process what it had saved.

    What the method has on the node beside the trainer lives on, and what the trainer
    left behind has time to end by itself.
    """
    return [_trial(name, size_mib, delay_s) for delay_s in delays_s]


def _trial(name, size_mib, delay_s):
    with new_place() as place, node(method_of(name), place) as beside:
        done = _run(place, "killed", name, size_mib, "--delay-s", delay_s)
        if done.returncode != -signal.SIGKILL:
            raise RuntimeError(last_words(done.stderr, ""))
        _await_orphans(place, {process.pid for process in beside})
        found = _loaded(place, name, size_mib, 1)
        before = found if found["whole"] else _loaded(place, name, size_mib, 0)
    return {"delay_s": delay_s, **found, "save_before_is_whole": before["whole"]}


def _run(place, task, name, size_mib, *options):
    arguments = (task, name, place.folder, place.runtime, "--mib", size_mib, *options)
    # Into files: what outlives the trainer would hold a pipe open.
    outputs = [place.runtime / f"{task}.{stream}" for stream in ("out", "err")]
    with outputs[0].open("w") as out, outputs[1].open("w") as err:
        done = subprocess.run(
            command_of("peer_trial.py", *arguments),
            env=place.environment(),
            stdout=out,
            stderr=err,
            check=False,
            timeout=_LONGEST_S,
        )
    done.stdout, done.stderr = (file.read_text() for file in outputs)
    return done


def _loaded(place, name, size_mib, step):
    """Whether a new process gets the step back, in the child's words."""
    done = _run(place, "loaded", name, size_mib, "--step", step)
    try:
        return answer(done, f"exit {done.returncode}")
    except RuntimeError as error:
        return {"whole": False, "reason": str(error)[:200]}


def _await_orphans(place, beside):
    """Waits until what the trainer left behind has ended, but for daemons."""
    deadline = time.monotonic() + _ORPHANS_S
    while time.monotonic() < deadline:
        if all(pid in beside or _is_daemon(pid) for pid in place.processes()):
            return
        time.sleep(0.05)


def _is_daemon(pid):
    with contextlib.suppress(OSError):
        return b"drivetrain_checkpoint._daemon" in Path(
            f"/proc/{pid}/cmdline"
        ).read_bytes().split(b"\0")
    return True
