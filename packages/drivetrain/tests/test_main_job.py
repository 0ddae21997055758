"""The main job as a whole: when it works, when its promise breaks, and what it refuses."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from drivetrain.quickstart import _main_job, main
from drivetrain.quickstart._channel import ChildError
from drivetrain.quickstart._elastic_job import Outcome
from drivetrain.quickstart._job import Job, Target
from drivetrain.quickstart._kill_report import Kill
from drivetrain.quickstart._main_job import MainJob
from drivetrain.quickstart._speed_up import SpeedUp
from drivetrain.quickstart._steps_log import Line
from drivetrain.quickstart._verdict import Promise
from drivetrain_core import Budget, Choice, Plan, ProgramError
from drivetrain_core.examples.byte_lm import ByteLMConfig

SCRIPTS = Path(__file__).parent / "scripts"
PLAN = (
    Choice("cpu_threads", {"num": 2}),
    Choice("optimizer_impl", {"kind": "foreach"}),
    Choice("micro_batch", {"num": 2}),
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIVETRAIN_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def tiny(**options):
    config = ByteLMConfig(num_layers=1, dim=16, num_heads=2, num_kv_heads=1, ffn_dim=16)
    size = {"batch_size": 4, "length": 16, "steps": 12, "max_bytes": 2_000_000}
    budget = Budget(seconds=120, trials=1)
    return Job(**{**size, "config": config, "budget": budget, **options})


def find(monkeypatch, *choices):
    """Puts a plan in the place of what a search finds, which hangs on the machine."""

    def search(self):
        plan = Plan(choices=choices)
        plan.save(self._out / "plan.yaml")
        self._result["search"] = {
            "plan_text": str(plan),
            "is_baseline": not choices,
            "num_trials": 2,
            "best_tried": 0.9,
            "report": {"trials": []},
        }
        return plan

    monkeypatch.setattr(MainJob, "_search", search)


def run(job, out, target=None):
    """Runs the main job; returns its status, its result, and what it has shown."""
    text = io.StringIO()
    console = Console(file=text, width=120, highlight=False)
    status = MainJob(job, target or job.target(), out, console).run()
    return status, json.loads((out / "result.json").read_text()), text.getvalue()


def written(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    return Target(str(path))


@pytest.mark.slow
def test_job_shows_both_halves(out, monkeypatch):
    find(monkeypatch, *PLAN)
    monkeypatch.setattr(_main_job, "fast", lambda _: Promise("fast", True, ""))
    status, result, text = run(tiny(), out)
    assert status == 0, text
    job, (program, plan) = result["job"], result["pair"]["rows"]
    # Both are the same training, and the one with the kill is it once more.
    assert plan["losses"] == pytest.approx(program["losses"], rel=1e-4)
    assert job["losses"] == pytest.approx(plan["losses"], rel=1e-4)
    assert job["kill"]["step"] == 7
    assert (job["steps_lost"], job["steps_again"]) == (0, 1)
    assert (job["samples_lost"], job["samples_repeated"]) == (0, 0)
    assert job["reserve_ready_s"] > 0
    assert job["checkpoint"] >= 9
    assert job["pause_s"] > 0
    for shown in ("not taken: micro_batch(num=2)", "not taken: cpu_threads(num=2)"):
        assert shown in text
    for shown in ("tokens/s", "held-out bits", "torchft", "not measured here", "next:"):
        assert shown in text
    assert result["pair"]["speed_up"]["half_width"] >= 0
    table = (out / "table.md").read_text()
    assert "| steps lost | 0 (made again: 1) |" in table
    assert not list((out / "work" / "elastic" / "checkpoints").glob("*.part"))


@pytest.mark.slow
def test_search_that_ends_with_the_program_as_written_is_a_result(out):
    status, result, text = run(tiny(), out)
    assert status == 0, text
    assert [row["name"] for row in result["pair"]["rows"]] == ["program as written"]
    assert result["pair"]["speed_up"] is None
    assert "no plan was shown to be faster" in text
    assert "x +-" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["convolution", pytest.param("transformer", marks=pytest.mark.extra)],
)
def test_scripts_of_users_do_all_of_it(name, out, monkeypatch):
    find(monkeypatch)
    target = Target(str(SCRIPTS / f"{name}.py"))
    status, result, text = run(tiny(), out, target)
    assert status == 0, text
    assert result["job"]["num_steps"] == 12
    assert result["pair"]["rows"][0]["bits_per_byte"] is None


def outcome(num_steps, *, exit_code=0, missing=()):
    """Returns what an elastic job may come to, of batches of four samples."""
    lines, at_s = [], 100.0
    for step in range(1, num_steps + 1):
        at_s += 1.0
        places = range(4 * step - 4, 4 * step)
        samples = tuple(place for place in places if place not in missing)
        lines.append(Line("part", step, 1 + (step >= 7), 0, 1, at_s, samples, 5.0))
        lines.append(Line("counted", step, 1 + (step >= 7), 0, 1, at_s))
    return Outcome(exit_code, lines, Kill(2, 1, 7, 106.5), 8, 1.0, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("found", "broken"),
    [
        (outcome(12, missing={17}), "every sample of the global order"),
        (outcome(6, exit_code=1), "a worker was killed, and the training came to"),
    ],
)
def test_job_that_loses_something_ends_with_1(found, broken, out, monkeypatch):
    find(monkeypatch)
    monkeypatch.setattr(_main_job, "run_elastic_job", lambda *_, **__: found)
    status, result, text = run(tiny(), out)
    assert status == 1
    assert f"BROKEN: {broken}" in text
    assert any(not promise["is_kept"] for promise in result["promises"])


@pytest.mark.slow
def test_plan_that_turns_out_slower_ends_with_1(out, monkeypatch):
    find(monkeypatch, Choice("micro_batch", {"num": 4}))
    monkeypatch.setattr(_main_job, "run_elastic_job", lambda *_, **__: outcome(12))
    monkeypatch.setattr(_main_job, "speed_up", lambda *_: SpeedUp(0.5, 0.01))
    status, _, text = run(tiny(), out)
    assert status == 1
    assert "BROKEN: the plan is not slower than the program as written" in text


OWN_LOOP = """
import torch
from drivetrain_core import accelerate
accelerate(
    torch.nn.Linear(2, 1),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    {data},
    lambda output, batch: output.mean(),
    {more}
)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "more", "says"),
    [
        ("[torch.ones(4, 2)]", "own_loop=True", "use train_step"),
        ("iter([torch.ones(4, 2)] * 9)", "", "pass a DataLoader or a list"),
        ("[torch.ones(1, 2)]", "", "larger than one sample"),
    ],
)
def test_program_that_workers_cannot_train_is_refused_before_the_search(
    data, more, says, tmp_path, out
):
    target = written(tmp_path, OWN_LOOP.format(data=data, more=more))
    with pytest.raises(ProgramError, match=says) as error:
        run(tiny(), out, target)
    assert f"drivetrain search {target.script}" in str(error.value)


@pytest.mark.slow
def test_script_without_accelerate_is_refused(tmp_path, out):
    with pytest.raises(ChildError, match="accelerate"):
        run(tiny(), out, written(tmp_path, "x = 1"))


@pytest.mark.slow
def test_script_that_fails_says_why(tmp_path, out):
    script = OWN_LOOP.format(data="[1 / 0]", more="")
    target = written(tmp_path, script)
    with pytest.raises(ChildError, match="ZeroDivisionError: division by zero"):
        run(tiny(), out, target)


@pytest.mark.slow
def test_model_of_other_weights_each_time_is_refused(tmp_path, out, monkeypatch):
    find(monkeypatch, Choice("optimizer_impl", {"kind": "foreach"}))
    seeded = "torch.manual_seed(__import__('os').getpid())\naccelerate("
    script = OWN_LOOP.format(data="[torch.ones(4, 2)] * 9", more="")
    target = written(tmp_path, script.replace("accelerate(", seeded))
    with pytest.raises(ProgramError, match="other weights each time it runs"):
        run(tiny(), out, target)


def test_folder_of_somebody_else_is_left_alone(out):
    (out / "work").mkdir(parents=True)
    (out / "work" / "thesis.tex").write_text("mine")
    with pytest.raises(ProgramError, match="not of an earlier run"):
        run(tiny(), out)
    assert (out / "work" / "thesis.tex").read_text() == "mine"


def test_folder_of_a_run_that_goes_on_is_left_alone(out):
    first = MainJob(tiny(), tiny().target(), out, Console())
    with first._work_folder():
        (out / "work" / "order.json").touch()
        with pytest.raises(ProgramError, match="in use by another run: choose another"):
            run(tiny(), out)
        assert (out / "work" / "order.json").exists()
    with first._work_folder():
        assert not (out / "work" / "order.json").exists()


def test_folder_that_is_a_file_is_named(out):
    out.write_text("mine")
    with pytest.raises(ProgramError, match="choose another --out"):
        run(tiny(), out)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_goes_on_without_the_main_job(how, out):
    """All that it starts inherits a name, by which it is found."""
    name = f"{out}-{how.name}"
    command = [sys.executable, "-m", "drivetrain_core.cli", "quickstart"]
    size = ["--seconds", "5", "--steps", "30", "--out", str(out)]
    with subprocess.Popen(
        [*command, *size, str(SCRIPTS / "waiting.py")],
        env={**os.environ, "JOB_OF_TEST": name},
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        assert any("training begins" in line for line in job.stdout)
        assert len(started(name)) > 2
        job.send_signal(how)
    end_s = time.monotonic() + 90
    while started(name) and time.monotonic() < end_s:
        time.sleep(0.1)
    assert not started(name)


def started(name):
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.environ().get("JOB_OF_TEST") == name:
                found.append(one)
    return found


@pytest.mark.parametrize("wrong", [["--steps", "3"], ["--seconds", "0"], ["--fast"]])
def test_wrong_use_ends_with_2(wrong, out, capsys):
    with pytest.raises(SystemExit) as end:
        main(["--out", str(out), *wrong])
    assert end.value.code == 2
    assert wrong[0] in capsys.readouterr().err


@pytest.mark.slow
def test_command_without_such_a_script_ends_with_1(out, capsys):
    assert main(["--out", str(out), "missing.py"]) == 1
    assert "there is no script 'missing.py'" in capsys.readouterr().err


def test_loop_of_the_scripts_own_is_told_of_and_so_are_its_arguments(
    out, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(MainJob, "run", lambda _: 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    script = tmp_path / "own.py"
    script.write_text("model(batch)")
    assert main(["--out", str(out), str(script), "--seconds", "3"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "does not name train_step" in said
    assert "is run with --seconds 3; options of quickstart come before it" in said
    script.write_text("accelerated.train_step(batch)")
    assert main(["--out", str(out), str(script)]) == 0
    assert not capsys.readouterr().out


def test_command_is_light_until_it_runs():
    code = (
        "import sys; from drivetrain_core.cli import main\n"
        "try: main(['quickstart', '--help'])\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert "SCRIPT" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("is_found", [False, True])
def test_next_commands_are_called_as_a_shell_finds_them(
    is_found, tmp_path, monkeypatch
):
    command = tmp_path / "env" / "bin" / "drivetrain"
    command.parent.mkdir(parents=True)
    command.touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(command.with_name("python")))
    monkeypatch.setenv("PATH", str(command.parent) if is_found else "")
    command.chmod(0o755)
    expected = "drivetrain" if is_found else "env/bin/drivetrain"
    assert _main_job._command() == expected
