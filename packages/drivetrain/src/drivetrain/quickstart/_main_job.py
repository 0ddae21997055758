"""The main job: searches, trains in turns, trains with a kill, and says what came of it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import statistics
import sys
import time
import traceback
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from drivetrain.quickstart._carry import carry_over
from drivetrain.quickstart._channel import Child
from drivetrain.quickstart._elastic_job import run_elastic_job
from drivetrain.quickstart._elastic_spec import ElasticSpec
from drivetrain.quickstart._kill_report import count, loss_gap
from drivetrain.quickstart._pair import train_in_turns
from drivetrain.quickstart._picture import draw
from drivetrain.quickstart._result import (
    about_job,
    about_machine,
    about_pair,
    about_search,
    about_verdict,
    finite,
)
from drivetrain.quickstart._run import Run
from drivetrain.quickstart._show import heading, steps_bar
from drivetrain.quickstart._size import (
    MOST_STEPS,
    save_every,
    step_of_kill,
    steps_of_job,
)
from drivetrain.quickstart._speed_up import speed_up
from drivetrain.quickstart._table import fast_grid, kill_grid, to_markdown, to_rich
from drivetrain.quickstart._verdict import fast, hard_to_kill
from drivetrain_core import MissingLibraryError, ProgramError
from drivetrain_core.machine_limits import num_cores
from drivetrain_core.scripts import search_script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from drivetrain.quickstart._carry import Carried
    from drivetrain.quickstart._job import Job, Target
    from drivetrain.quickstart._verdict import Promise
    from drivetrain_core import Choice, Plan
    from drivetrain_search import Report

_NUM_WORKERS, _NUM_STANDBYS = 2, 1

_TRAINER = "drivetrain.quickstart._trainer"


class MainJob:
    """One run of the main job.

    Args:
        job: Its size.
        target: Whose program is run.
        out: The folder of what it leaves; what an earlier run left there is replaced.
        console: Where it is shown.
    """

    def __init__(self, job: Job, target: Target, out: Path, console: Console) -> None:
        self._job = job
        self._target = target
        self._out = out
        self._work = out / "work"
        self._mark = self._work / "of-drivetrain-quickstart"
        self._console = console
        self._seconds: dict[str, float] = {}
        self._result: dict[str, Any] = {"seconds": self._seconds}

    def run(self) -> int:
        """Runs all parts; returns 0 when every promise was kept, else 1.

        Raises:
            ProgramError: The script cannot be used, and why.
            ChildError: A process of the job has failed.
        """
        with self._work_folder():
            return self._run()

    def _run(self) -> int:
        began_s = time.monotonic()
        with ExitStack() as stack:
            program = self._run_of(stack, "program as written", ())
            if program.facts["refusal"]:
                raise ProgramError(program.facts["refusal"])
            self._result["machine"] = about_machine(program.facts)
            plan = self._search()
            runs, promise = self._train_pair(stack, program, plan)
        promises = [promise, *self._train_with_kill(plan, runs[-1])]
        self._seconds["all"] = time.monotonic() - began_s
        self._result["promises"] = about_verdict(promises)
        self._close(plan, promises)
        return 0 if all(promise.is_kept for promise in promises) else 1

    @contextmanager
    def _work_folder(self) -> Iterator[None]:
        """Makes the folder of logs and checkpoints anew, and keeps it to this run.

        Raises:
            ProgramError: What is there is no folder, not of an earlier run, or of one that
                still runs.
        """
        if self._work.exists() and not self._mark.exists():
            message = (
                f"{self._work} is not of an earlier run, and would be replaced: choose "
                "another --out"
            )
            raise ProgramError(message)
        try:
            self._work.mkdir(parents=True, exist_ok=True)
            mark = self._mark.open("a")
        except OSError as error:
            message = (
                f"{self._work} cannot be made ({error.strerror}): choose another --out"
            )
            raise ProgramError(message) from error
        with mark:
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"{self._work} is in use by another run: choose another --out"
                raise ProgramError(message) from None
            for one in self._work.iterdir():
                if one.is_dir():
                    shutil.rmtree(one)
                elif one != self._mark:
                    one.unlink()
            yield

    def _run_of(self, stack: ExitStack, name: str, choices: Sequence[Choice]) -> Run:
        """Starts a process that trains the program under a plan."""
        log = self._work / f"{name.replace(' ', '_')}.log"
        run = Run(name=name, child=stack.enter_context(Child(_TRAINER, log)))
        run.build(self._target, choices)
        return run

    def _search(self) -> Plan:
        """Searches for a plan, and shows it with its reasons."""
        budget = self._job.budget
        heading(self._console, "a", f"search: at most {budget.seconds:.0f} s")
        began_s = time.monotonic()
        target, path = self._target, self._out / "plan.yaml"
        try:
            found = search_script(target.script, target.arguments, budget, path)
        except OSError as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            name = type(error).__name__
            message = f"{name}: {error}, {where.filename}:{where.lineno}"
            raise ProgramError(message) from error
        found.close()
        assert found.report is not None
        self._seconds["search"] = time.monotonic() - began_s
        self._console.print(found.report.table())
        report = cast("Report", found.report)
        self._result["search"] = about_search(report, found.plan)
        return found.plan

    def _train_pair(
        self, stack: ExitStack, program: Run, plan: Plan
    ) -> tuple[list[Run], Promise]:
        """Trains the program and the plan in turns; returns both, the plan last."""
        began_s = time.monotonic()
        limit_s = self._job.limits.pair_s
        text = "the plan beside the program as written, in turns"
        if not plan.choices:
            text = "the program as written, which is the plan"
        heading(self._console, "b", f"training, {text}: at most {limit_s:.0f} s")
        program.child.ask("draw", num_steps=MOST_STEPS, path=str(self._order))
        flops = program.child.ask("flops")
        runs = [program]
        if plan.choices:
            runs.append(self._run_of(stack, "plan", plan.choices))
            self._require_same_weights(runs)
        for run in runs:
            run.begin(self._order)
        with steps_bar(self._console, "training in turns") as tell:
            turns = train_in_turns(
                runs,
                steps=self._job.steps,
                limit_s=limit_s,
                began_s=began_s,
                on_turn=tell,
            )
        speed = speed_up(*turns) if plan.choices else None
        bits = [self._bits(run) for run in runs]
        self._result["pair"] = about_pair(runs, speed=speed, flops=flops, bits=bits)
        self._seconds["pair"] = time.monotonic() - began_s
        return runs, fast(speed)

    def _require_same_weights(self, runs: Sequence[Run]) -> None:
        if len({run.facts["digest"] for run in runs}) > 1:
            message = (
                f"{self._target.script} makes a model of other weights each time it "
                "runs: seed what it draws them from"
            )
            raise ProgramError(message)

    @property
    def _order(self) -> Path:
        return self._work / "order.json"

    def _bits(self, run: Run) -> float | None:
        held_out = self._target.held_out
        if held_out is None:
            return None
        return float(run.child.ask("bits_per_byte", **held_out._asdict()))

    def _train_with_kill(self, plan: Plan, undisturbed: Run) -> list[Promise]:
        """Trains with two workers, of which one is killed."""
        began_s = time.monotonic()
        limit_s = self._job.limits.job_s
        text = f"the same training with {_NUM_WORKERS} workers, one of which is killed"
        heading(self._console, "c", f"{text}: at most {limit_s:.0f} s")
        share = num_cores() // _NUM_WORKERS
        num_threads = max(1, min(torch.get_num_threads(), share))
        carried = carry_over(
            plan.choices,
            num_workers=_NUM_WORKERS,
            num_threads=num_threads,
            has_batch_norm=undisturbed.facts["has_batch_norm"],
        )
        spec = self._elastic_spec(carried, undisturbed)
        with steps_bar(self._console, "two workers") as tell:
            outcome = run_elastic_job(
                spec,
                num_threads=num_threads,
                limit_s=limit_s,
                on_step=lambda step: tell(step, spec.num_steps),
                on_note=lambda note: self._console.print(note, markup=False),
            )
        counted = count(
            outcome.lines,
            num_steps=spec.num_steps,
            global_batch=spec.global_batch,
            kill=outcome.kill,
        )
        kill_step = outcome.kill.step if outcome.kill else spec.kill_step
        gap = loss_gap(undisturbed.losses, counted.losses, kill_step=kill_step)
        self._seconds["job"] = time.monotonic() - began_s
        self._result["job"] = about_job(spec, outcome, counted, gap, carried)
        return hard_to_kill(
            outcome.exit_code,
            counted,
            gap,
            num_steps=spec.num_steps,
            has_killed=outcome.kill is not None,
        )

    def _elastic_spec(self, carried: Carried, undisturbed: Run) -> ElasticSpec:
        num_steps = steps_of_job(
            len(undisturbed.losses),
            statistics.median(undisturbed.times_s),
            limit_s=self._job.limits.job_s,
            start_s=undisturbed.start_s,
        )
        folder = self._work / "elastic"
        folder.mkdir()
        return ElasticSpec(
            folder=folder.absolute(),
            script=self._target.script,
            arguments=self._target.arguments,
            choices=tuple((one.name, dict(one.config)) for one in carried.choices),
            order=self._order.absolute(),
            num_steps=num_steps,
            global_batch=undisturbed.facts["batch_size"],
            num_passes=carried.num_passes,
            num_workers=_NUM_WORKERS,
            num_standbys=_NUM_STANDBYS,
            kill_step=step_of_kill(num_steps),
            victim=_NUM_WORKERS - 1,
            save_every=save_every(num_steps),
            job=f"quickstart-{os.getpid()}",
        )

    def _close(self, plan: Plan, promises: Sequence[Promise]) -> None:
        """Writes the results, and shows table, verdict, places and what to do next."""
        console = self._console
        heading(console, "d", "both halves")
        grids = [fast_grid(self._result), kill_grid(self._result)]
        for grid in grids:
            console.print(to_rich(grid))
        for promise in promises:
            mark = "kept" if promise.is_kept else "BROKEN"
            console.print(f"{mark}: {promise.what} ({promise.because})", markup=False)
        console.print(f"plan: {plan}", markup=False)
        for reason in plan.why:
            line = f"  {reason.slot}: {reason.chose}, because {reason.because}"
            console.print(line, markup=False)
        table = self._out / "table.md"
        table.write_text("\n\n".join(map(to_markdown, grids)) + "\n", encoding="utf-8")
        file = self._out / "result.json"
        result = json.dumps(finite(self._result), indent=2, allow_nan=False)
        file.write_text(result, encoding="utf-8")
        files = [self._out / "plan.yaml", table, file]
        try:
            files.append(draw(self._result, self._out / "quickstart.png"))
        except MissingLibraryError as error:
            console.print(f"no picture: {error}", markup=False)
        console.print(f"written: {', '.join(map(str, files))}", markup=False)
        console.print(f"logs and checkpoints: {self._work}", markup=False)
        seconds = ", ".join(f"{k} {v:.0f} s" for k, v in self._seconds.items())
        console.print(f"it took: {seconds}", markup=False)
        console.print(self._next(), markup=False)

    def _next(self) -> str:
        """Returns what to do now, in three lines."""
        plan, script, us = self._out / "plan.yaml", self._target.script, _command()
        use = f"{us} apply {plan} {script}   # train your script under it"
        if self._target.held_out is not None:
            use = f"{us} quickstart SCRIPT   # the same for a script of yours"
        explain = f"{us} explain {plan}   # what it does, and why"
        run = (
            f"{us} elastic run --nproc-per-node 2 SCRIPT   # once it has an ElasticLoop"
        )
        return f"next:\n  {explain}\n  {use}\n  {run}"


def _command() -> str:
    """Returns how a shell here calls `drivetrain`."""
    beside = Path(sys.executable).with_name("drivetrain")
    if shutil.which("drivetrain") == str(beside) or not beside.exists():
        return "drivetrain"
    return os.path.relpath(beside)
