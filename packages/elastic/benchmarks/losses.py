"""A training that everything happens to, beside the same one that nothing happens to."""

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile

from drivetrain_elastic.testing import LocalJob, members_of
from drivetrain_testing import Row

_MODULE = "drivetrain_elastic.examples.byte_lm"


def losses_fp64(quick):
    """Compares the loss of each step."""
    num_steps = 80 if quick else 200
    with tempfile.TemporaryDirectory() as folder, LocalJob(folder) as quiet:
        alone(folder, num_steps, "float64", 0)
        wanted = quiet.losses()
    with tempfile.TemporaryDirectory() as folder:
        found, events, _ = disturbed(folder, num_steps, "float64")
    worst = max(abs(found[step] / wanted[step] - 1) for step in wanted)
    is_whole = sorted(found) == sorted(wanted) == list(range(1, num_steps + 1))
    return Row(
        figure=f"{worst:.1e} relative at most, over {len(found)} steps with {events}",
        holds=is_whole and worst <= 1e-9,
        proven_on="cpu-gloo",
    )


def losses_fp32(quick):
    """Compares the held-out loss at the end with those of three seeds."""
    num_steps = 80 if quick else 200
    bits = []
    for seed in range(3):
        with tempfile.TemporaryDirectory() as folder:
            bits.append(alone(folder, num_steps, "float32", seed))
    with tempfile.TemporaryDirectory() as folder:
        *_, text = disturbed(folder, num_steps, "float32")
        found = held_out(text)
    spread = max(bits) - min(bits)
    return Row(
        figure=f"{found:.4f} bits a byte; undisturbed {bits[0]:.4f}, three seeds "
        f"{min(bits):.4f} to {max(bits):.4f}",
        holds=abs(found - statistics.mean(bits)) <= spread,
        proven_on="cpu-gloo",
    )


def alone(folder, num_steps, dtype, seed):
    """Trains in one process; returns the bits a byte on held-out text."""
    command = [sys.executable, "-m", _MODULE, "--log", f"{folder}/steps"]
    command += ["--dtype", dtype, "--steps", str(num_steps), "--seed", str(seed)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, env=env, capture_output=True, text=True)
    return held_out(done.stdout)


def held_out(text):
    (bits,) = re.findall(r"([\d.]+) bits a byte", text)
    return float(bits)


def disturbed(folder, num_steps, dtype):
    """Trains on four workers of two nodes, and lets everything happen to them.

    Returns the losses, what has happened, and what the nodes wrote.
    """
    arguments = ["--dtype", dtype, "--steps", str(num_steps), "--pause-s", "0.05"]
    options = ["--nproc-per-node", "2", "--nnodes", "1:2", "--frozen-s", "1"]
    options += ["--last-call-s", "20"]
    with LocalJob(folder, options=options, arguments=arguments) as job:
        job.start_node()
        job.start_node()
        told = []

        def after(num, what):
            step = max((m.step for m in job.members()), default=0)
            job.wait_for_step(step + num, num_workers=2)
            told.append(what)
            return job.members()

        job.wait_for_step(5, num_workers=4)
        os.kill(after(2, "a kill")[1].pid, signal.SIGKILL)
        job.wait_for(lambda s: s.world_size == 4 and len(members_of(s)) == 4)
        os.kill(after(4, "a stop")[2].pid, signal.SIGSTOP)
        job.wait_for(lambda s: s.world_size == 4 and len(members_of(s)) == 4)
        after(4, "a kill of the master")
        job.master().kill()
        after(4, "a node that leaves")
        job.nodes["node1"].send_signal(signal.SIGTERM)
        job.wait_for(lambda s: s.world_size == 2)
        after(2, "a node that comes")
        job.start_node()
        job.wait_for(lambda s: s.world_size == 4 and len(members_of(s)) == 4)
        victims = after(3, "two kills at once")
        for one in victims[1:3]:
            os.kill(one.pid, signal.SIGKILL)
        codes = job.wait(300.0)
        if set(codes.values()) != {0}:
            raise RuntimeError(job.text())
        return job.losses(), ", ".join(told), job.text()
