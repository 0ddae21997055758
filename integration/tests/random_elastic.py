"""Random models under `drivetrain elastic run`, where a worker is killed: healed and the same.

`python integration/tests/random_elastic.py --number 50 --ranks 1 2`; `--first` goes on
from a seed. Two replicas, of one rank or of several with a mesh among them, train the
program of a seed. A rank, or all of a replica, are killed by SIGKILL within a step or after
it. Losses and weights are those of a plain loop in one process, or the plan was refused before
the first step; a job that ends without them names the reason.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from random_programs import MESHES, make
from same_program import STEPS, judged, plain
from small_decoder import BATCH, SAMPLES, Case, adamw
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import default_collate

from drivetrain_core import DrivetrainError, Numerics, accelerate
from drivetrain_core.extending import numerics_of, read_strategy
from drivetrain_core.services import DcpCheckpointer, init_process_group
from drivetrain_elastic import ElasticLoop, Schedule

STRATEGIES: dict[int, list[list[Any]]] = {
    1: [
        [],
        [("activation_checkpoint", "full")],
        [("optimizer_impl", "foreach")],
        [("optimizer_impl", "fused")],
        ["kernels"],
    ],
    2: [
        *(plan for plan in MESHES[2] if plan != [("mesh", {"expert": 2})]),
        [("mesh", {"tensor": 2}), "loss_parallel"],
        ["fsdp", ("precision", "bf16_params")],
    ],
    4: MESHES[4],
}
"""By the ranks of a replica."""

PHASES = ("before the forward pass", "after the backward pass", "after the step")
LIMIT_S = 120
BOUNDS = {Numerics.LOW_PRECISION: (3e-2, 0.3)}
"""Of losses, and of the way of weights, relative, where they are not 1e-5."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is trained, how, and who is killed when.

    Attributes:
        seed: Of the program and of all that follows.
        ranks: Of a replica; `standbys` replicas stand by.
        strategy: What `accelerate` is given, as it is `own_loop`.
        step: In which the kill is, at a `phase`.
        victims: The ranks that are killed, by the first of them.
    """

    seed: int
    ranks: int
    strategy: list[Any]
    own_loop: bool
    standbys: int
    step: int
    phase: str
    victims: list[int]

    @classmethod
    def of(cls, seed: int, ranks: int) -> Job:
        """Returns the job of a seed."""
        draw = random.Random(f"{seed} {ranks}")
        victim = draw.randrange(2 * ranks)
        peers = [r for r in range(2 * ranks) if r // ranks == victim // ranks]
        rest = [rank for rank in peers if rank != victim]
        return cls(
            seed=seed,
            ranks=ranks,
            strategy=draw.choice(STRATEGIES[ranks]),
            own_loop=draw.random() < 0.5,
            standbys=draw.choice((1, 1, 0)),
            step=draw.randint(1, STEPS),
            phase=draw.choice(PHASES),
            victims=[victim, *(rest if draw.random() < 0.3 else [])],
        )

    def __str__(self) -> str:
        kill = f"ranks {self.victims} {self.phase} {self.step}"
        return f"{self.seed} | {self.strategy} | {self.standbys} standby | {kill}"


def program(seed: int) -> Case:
    """Returns the program of a seed, in a dtype in which it can be compared."""
    case = make(seed)
    if case.optimizer is adamw:  # It divides by gradients that are all rounding.
        case.model.double()
    if random.Random(seed).random() < 0.4:
        case.scheduler = partial(StepLR, step_size=3, gamma=0.5)
    return case


def train(job: Job, folder: Path) -> None:
    """Trains as a worker; leaves losses, the weights, and why it was refused in a folder."""
    torch.set_num_threads(1)
    counted = 0
    try:
        if job.ranks > 1:
            init_process_group()
        case = program(job.seed)
        accelerated = accelerate(
            case.model,
            case.optimizer,
            case.data,
            case.loss,
            scheduler=case.scheduler,
            strategy=job.strategy,
            own_loop=job.own_loop,
            cache=False,
            progress=False,
        )
        scheduler = accelerated.scheduler
        loop = ElasticLoop(
            accelerated.module,
            accelerated.optimizer,
            schedule=Schedule(num_samples=SAMPLES, global_batch=BATCH, shuffle=False),
            num_steps=STEPS,
            state={} if scheduler is None else {"scheduler": scheduler},
        )
        data = case.data.dataset
        for step in loop:
            counted = loop.step
            told = folder / f"{os.getpid()}"
            told.write_text(told.name)
            told.rename(folder / f"rank-{step.rank}")
            while scheduler is not None and scheduler.last_epoch < loop.step:
                scheduler.step()
            with step:
                kill(job, folder, step, PHASES[0])
                for part in step.parts():
                    batch = default_collate([data[index] for index in part.indices])
                    loss = accelerated.loss_of(batch) * part.weight
                    note(folder, step, loss)
                    accelerated.backward(loss)
                if case.max_grad_norm is not None:
                    accelerated.clip_grad_norm_(case.max_grad_norm)
                kill(job, folder, step, PHASES[1])
            kill(job, folder, step, PHASES[2])
    except DrivetrainError as error:
        said = f"{type(error).__name__}: {getattr(error, 'because', error)}"
        (folder / ("not healed" if counted else "refused")).write_text(said)
        raise
    if loop.is_done:
        copy = loop.rank // job.ranks
        DcpCheckpointer(folder / f"weights-{copy}").save(STEPS, accelerated.state())


def kill(job: Job, folder: Path, step: Any, phase: str) -> None:
    """Kills the victims, once, from the first of them."""
    here, told = (step.number, phase, step.rank), folder / "killed"
    if here != (job.step, job.phase, job.victims[0]) or told.exists():
        return
    told.touch()
    for rank in reversed(job.victims):
        file = folder / f"rank-{rank}"
        if file.exists():
            os.kill(int(file.read_text()), signal.SIGKILL)


def note(folder: Path, step: Any, loss: torch.Tensor) -> None:
    """Writes what a rank adds to a step's loss, before any other rank has its gradients."""
    line = [step.number, step.epoch, step.rank, step.world_size, float(loss.detach())]
    with Path(folder, f"losses-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def losses_of(folder: Path, ranks: int) -> list[float]:
    """Returns the loss of each step, in the world that made it last; NaN where it lacks."""
    rows = [
        json.loads(line)
        for file in folder.glob("losses-*.jsonl")
        for line in file.read_text().splitlines()
    ]
    losses = []
    for number in range(1, STEPS + 1):
        epoch = max((row[1] for row in rows if row[0] == number), default=0)
        parts = [row for row in rows if row[:2] == [number, epoch]]
        # Each rank of a replica has the replica's loss, or one whose mean that is.
        loss = sum(row[4] for row in parts) / ranks
        is_whole = bool(parts) and len(parts) == parts[0][3]
        losses.append(loss if is_whole else math.nan)
    return losses


def compared(job: Job, folder: Path) -> str:
    """Returns whether a job that has ended trained what a plain loop does."""
    case = program(job.seed)
    start = [p.detach().double().clone() for p in case.model.parameters()]
    expected, _, weights = plain(case)
    losses = losses_of(folder, job.ranks)
    numerics = numerics_of(read_strategy(job.strategy).choices)
    loss_bound, way_bound = BOUNDS.get(numerics, (1e-5, 1e-5))
    gaps = [abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)]
    if not all(gap < loss_bound for gap in gaps):
        return f"WRONG: losses are {[f'{gap:.0e}' for gap in gaps]} off"
    copies = []
    for file in sorted(folder.glob("weights-*")):
        model = program(job.seed).model
        DcpCheckpointer(file).restore({"model": model})
        copies.append([p.detach().double() for p in model.parameters()])
    if not copies:
        return "WRONG: no replica has come to the end"
    far = distance(weights, copies[0]) / distance(weights, start)
    if not far < way_bound:
        return f"WRONG: weights are {far:.1e} of their way off"
    if any(distance(copies[0], other) for other in copies[1:]):
        return "WRONG: the weights of the replicas differ"
    return "same"


def distance(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """Returns how far weights are from others."""
    pairs = zip(some, others, strict=True)
    return math.sqrt(sum(float((a - b).square().sum()) for a, b in pairs))


def verdict(job: Job, folder: Path) -> str:
    """Runs a job; returns `same`, `refused: why`, `not healed: why`, or `WRONG: what`."""
    command = [sys.executable, "-m", "drivetrain_core.cli", "elastic", "run"]
    command += ["--nproc-per-node", str(2 * job.ranks)]
    command += ["--workers-per-copy", str(job.ranks), "--standbys", str(job.standbys)]
    command += ["--preload", "drivetrain_core", __file__, "--train", str(folder)]
    (folder / "job.json").write_text(json.dumps(asdict(job)))
    with Path(folder, "output").open("w+") as output:
        given: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT}
        given["env"] = os.environ | {"OMP_NUM_THREADS": "1"}
        try:
            ran = subprocess.run(command, check=False, timeout=LIMIT_S, **given)
            status = ran.returncode
        except subprocess.TimeoutExpired:
            status = None
        output.seek(0)
        text = output.read()
    for kind in ("refused", "not healed"):
        if status and (folder / kind).exists():
            return judged(f"{kind}: {(folder / kind).read_text()}")
    if status and "Traceback" not in text:
        return f"not healed: {text.strip().splitlines()[-1:]}"
    if status is None:
        found = "WRONG: it hangs"
    elif status:
        found = f"WRONG: it ends with {status}"
    elif not (folder / "killed").exists():
        found = "WRONG: nobody was killed"
    else:
        found = compared(job, folder)
    return found if found == "same" else f"{found}\n{text}"


def main() -> int:
    """Prints what is not healed and the same, and counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=50, help="of all jobs")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train is not None:
        job = json.loads((given.train / "job.json").read_text())
        train(Job(**job), given.train)
        return 0
    counts = {"same": 0, "refused": 0, "not healed": 0, "WRONG": 0}
    sizes = itertools.cycle(given.ranks)
    for seed in range(given.first, given.first + given.number):
        job = Job.of(seed, next(sizes))
        with tempfile.TemporaryDirectory() as folder:
            said = verdict(job, Path(folder))
        counts[said.partition(":")[0]] += 1
        if said != "same":
            print(job, said, sep=" | ", flush=True)
    print(counts)
    return bool(counts["WRONG"])


if __name__ == "__main__":
    sys.exit(main())
