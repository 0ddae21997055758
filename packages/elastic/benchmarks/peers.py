"""The same faults under other packages and under this one: who goes on sooner.

Each peer trains the same toy in the same way as the bars of this package, at 50 ms a step
and over Gloo. What it needs is in peers_environment.txt.
"""

import functools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from peer_job import PeerError, PeerJob, outcome
from peer_setups import (
    NODES,
    NODES_OWN,
    NODES_QUICK,
    NVRX,
    NVRX_QUICK,
    RANKS,
    TORCHFT,
    TORCHFT_QUICK,
    TORCHRUN,
    TORCHRUN_OWN,
    TORCHRUN_QUICK,
)
from recovery import kill_pauses, leave_pauses, node_kill_pauses, stop_pauses

from drivetrain_testing import Bar, Row, run_bars

_HERE = Path(__file__).parent
# After so long a peer counts as one that does not go on.
_CAP_S = 60.0


# ---- faults ----


def kill(job, line):
    """Kills a rank; returns whom it has hit."""
    os.kill(line["pid"], signal.SIGKILL)
    return {line["pid"]}


def stop(job, line):
    """Stops a rank."""
    os.kill(line["pid"], signal.SIGSTOP)
    return {line["pid"]}


def kill_node(job, line):
    """Kills all processes of the second node at once."""
    hit = job.processes("node1")
    for process in hit:
        process.kill()
    return {process.pid for process in hit}


def ask_node(job, line):
    """Asks the second node to leave."""
    hit = job.processes("node1")
    hit[0].terminate()
    return {process.pid for process in hit}


def trial(python, setup, fault, dice):
    """Starts a job, lets a fault happen in it, and reads what that has cost."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        PeerJob(python, folder) as job,
    ):
        setup.start(job, **setup.options)
        ranks = job.wait_until_whole(RANKS, 25 + dice.randrange(10))
        time.sleep(dice.uniform(0.0, 0.05))
        line = ranks[dice.choice(setup.victims)]
        at_s = time.monotonic()
        victims = fault(job, line)
        read = functools.partial(
            outcome,
            at_s=at_s,
            victims=victims,
            world_size=RANKS,
            in_place=setup.in_place,
        )

        def is_over(lines):
            found = read(lines)
            is_full = found.full_s is not None or not setup.refills
            return found.pause_s is not None and is_full

        job.wait_for(is_over, _CAP_S)
        return read(job.lines())


# ---- rows ----


def measure(quick, fault, measure_own, *setups):
    """Measures a fault with each of some settings of a peer, and with this package.

    Args:
        quick: Whether once will do.
        fault: What happens.
        measure_own: Returns pauses of this package, given how many.
        setups: The peer's settings.
    """
    num = 1 if quick else 3
    python = peers_python()
    if python is None:
        return Row(
            figure="no environment: python -m venv .peers && .peers/bin/pip install "
            "-r peers_environment.txt, in the folder of peers.py",
            holds=None,
        )
    own = measure_own(num)
    details = {"versions": versions(python), "own": own}
    parts, dice, holds = [f"here {_median(own)}"], random.Random(0), None
    for setup in setups:
        if quick and setup.is_slow:
            continue
        trials = []
        try:
            for _ in range(num):
                trials.append(trial(python, setup, fault, dice))
                if trials[-1].pause_s is None:
                    break
        except PeerError as error:
            # These rows report; what does not run is no miss of this package.
            parts.append(f"{setup.name}: failed: {error}")
            continue
        details[setup.name] = [asdict(one) for one in trials]
        parts.append(f"{setup.name}: {in_words(setup, trials)}")
        pauses = [_CAP_S if one.pause_s is None else one.pause_s for one in trials]
        is_sooner = statistics.median(own) <= statistics.median(pauses)
        holds = is_sooner and holds is not False
    return Row(
        figure="; ".join(parts),
        holds=holds,
        proven_on="cpu-gloo",
        details=details,
    )


def in_words(setup, trials):
    """The costs of some faults; those of which a peer does not recover are the last."""
    never = ""
    if trials[-1].pause_s is None:
        *trials, _ = trials
        never = f"no step within {_CAP_S:g} s"
        if not trials:
            return never
        never = f", then {never}"
    words = f"pause {_median([one.pause_s for one in trials])}"
    if setup.refills:
        fulls = [one.full_s for one in trials if one.full_s is not None]
        words += f", four again after {_median(fulls)}" if fulls else ", four never"
        if 0 < len(fulls) < len(trials):
            words += f" ({len(fulls)} of {len(trials)})"
    words += f", {max(one.again for one in trials)} steps again"
    dropped = max(one.dropped for one in trials)
    return words + (f", {dropped} dropped" if dropped else "") + never


def _median(values):
    text = f"{statistics.median(values):.2f} s"
    return text if len(values) == 1 else f"{text} (worst {max(values):.2f})"


def peers_python():
    """The interpreter of the peers: DRIVETRAIN_PEERS_PYTHON, or that of `.peers`."""
    named = os.environ.get("DRIVETRAIN_PEERS_PYTHON")
    path = Path(named) if named else _HERE / ".peers" / "bin" / "python"
    return path if path.exists() else None


@functools.cache
def versions(python):
    """The versions of the peers that are installed."""
    names = ("torch", "torchft", "nvidia-resiliency-ext")
    program = (
        "import json, sys, importlib.metadata as m; "
        "have = {d.name.lower(): d.version for d in m.distributions()}; "
        "print(json.dumps({n: have.get(n) for n in sys.argv[1:]}))"
    )
    command = [str(python), "-c", program, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


# ---- the peers ----


def torchrun_kills(quick):
    """Kills one of four workers: all of them start again."""
    return measure(
        quick, kill, kill_pauses, TORCHRUN_OWN, replace(TORCHRUN, is_slow=True)
    )


def torchrun_stops(quick):
    """Stops one of four workers: its agent waits 30 s before it kills it."""
    slow = replace(TORCHRUN, name="default time-out of 30 min", is_slow=True)
    return measure(quick, stop, stop_pauses, TORCHRUN_QUICK, slow)


def torchrun_node_kills(quick):
    """Kills a node of two, agent and workers."""
    slow = [replace(one, is_slow=True) for one in (NODES_OWN, NODES)]
    return measure(quick, kill_node, node_kill_pauses, NODES_QUICK, *slow)


def torchrun_leaves(quick):
    """Asks a node of two to leave, by a signal to its agent."""
    slow = [replace(one, is_slow=True) for one in (NODES_OWN, NODES)]
    return measure(quick, ask_node, leave_pauses, NODES_QUICK, *slow)


def torchft_kills(quick):
    """Kills one of four replica groups, which its agent starts again."""
    return measure(quick, kill, kill_pauses, TORCHFT_QUICK, TORCHFT)


def torchft_stops(quick):
    """Stops one of four replica groups, which nobody starts again."""
    setups = [replace(one, refills=False) for one in (TORCHFT_QUICK, TORCHFT)]
    # A stopped rank counts as lost after the same time as with the peer, as tuned.
    own = functools.partial(stop_pauses, silence_s=0.5)
    return measure(quick, stop, own, *setups)


def nvrx_kills(quick):
    """Kills one of four ranks; another one takes its place if one is in reserve."""
    return measure(quick, kill, kill_pauses, NVRX_QUICK, NVRX)


def nvrx_stops(quick):
    """Stops one of four ranks."""
    own = functools.partial(stop_pauses, silence_s=1.0)
    return measure(quick, stop, own, NVRX_QUICK, replace(NVRX, is_slow=True))


_BOUND = "the pause here is shorter"
PEERS = [
    ("torchrun-kills", _BOUND, torchrun_kills),
    ("torchrun-stops", _BOUND, torchrun_stops),
    ("torchrun-node-kills", _BOUND, torchrun_node_kills),
    ("torchrun-leaves", _BOUND, torchrun_leaves),
    ("torchft-kills", _BOUND, torchft_kills),
    ("torchft-stops", _BOUND, torchft_stops),
    ("nvrx-kills", _BOUND, nvrx_kills),
    ("nvrx-stops", _BOUND, nvrx_stops),
]

if __name__ == "__main__":
    BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in PEERS]
    sys.exit(run_bars(BARS, description=__doc__))
