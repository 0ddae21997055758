"""The GPU command as a whole, on a machine without a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import run
from install import Package, SetupError
from small_package import make_package

SCRIPT = Path(__file__).with_name("run.py")
STUCK = "import time\ntime.sleep(3600)"
NETWORK = "import urllib.request\nurllib.request.urlopen('http://192.0.2.1/')"
CRASHING = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"
FACTS = {
    "name": "facts",
    "status": "pass",
    "figure": "no GPU",
    "facts": {"hardware": {"gpus": []}, "versions": {"torch": "2.13.0"}},
}


def call(checkout, *arguments):
    """Runs the command as far as it goes without a GPU; returns status and report."""
    out = checkout / "made" / "gpu.json"
    places = ["--dist", str(checkout / "dist"), "--out", str(out)]
    code = run.main(["--allow-cpu", *places, *arguments])
    return code, json.loads(out.read_text())


@pytest.fixture(autouse=True)
def handlers():
    """Gives signals back, which the command takes."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, 2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr(run, "measure_facts", lambda *_, **__: FACTS)


def test_run_without_a_gpu_says_so_and_exits_with_3(checkout, capsys, without_gpu):
    assert run.main(["--dist", str(checkout / "dist")]) == 3
    assert "no GPU: torch 2.13.0 sees none" in capsys.readouterr().out
    assert not (checkout / "gpu.json").exists()


@pytest.mark.parametrize("dry_run", [True, False])
def test_device_is_asked_through_core_of_this_checkout(checkout, monkeypatch, dry_run):
    core = Package(folder=checkout, distribution="drivetrain-core", is_native=False)
    other = Package(folder=checkout, distribution="drivetrain-one", is_native=False)
    asked = []

    def facts_of(command, *, env, **_):
        asked.append((command[1:], env["PYTHONPATH"].split(os.pathsep)[0]))
        return subprocess.CompletedProcess(command, 0, '{"hardware": {}}', "")

    def install(packages, *_):
        assert packages == [core]
        return [checkout / "site"], {}

    monkeypatch.setattr(run, "install", install)
    monkeypatch.setattr(run.subprocess, "run", facts_of)
    row = run.measure_facts([other, core], {}, checkout / "dist", dry_run=dry_run)
    assert (row["status"], row["facts"]) == ("pass", {"hardware": {}})
    program = str(SCRIPT.with_name("facts.py"))
    command = [program, *["--dry-run"] * dry_run]
    assert asked == [(command, str(checkout / "site"))]
    problem = {"core": "is not installed"}
    monkeypatch.setattr(run, "install", lambda *_: ([], problem))
    with pytest.raises(SetupError, match="core is not installed"):
        run.measure_facts([core], {}, checkout / "dist", dry_run=dry_run)


@pytest.mark.slow
def test_run_installs_offline_tests_measures_and_reports(checkout, capfd):
    (checkout / "dist" / "commit.txt").write_text("abc-dirty\n")
    code, report = call(checkout)
    gpus = report["hardware"]["gpus"]
    assert code == (1 if gpus else 0)
    assert report["commit"] == "abc-dirty"
    assert {"torch", "cuda", "python", "triton", "driver"} <= set(report["versions"])
    assert report["date"].endswith("+00:00")
    rows = {row["name"]: row for row in report["rows"]}
    assert list(rows) == ["facts", "install", "tests-one", "bars-one"]
    # Only the marked test was taken, and no other file was looked at.
    tests = rows["tests-one"]["tests"]
    assert (tests["failed"], tests["skipped"]) == ((1, 0) if gpus else (0, 1))
    assert [bar["name"] for bar in rows["bars-one"]["bars"]] == ["speed", "large"]
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert ["row", "what", "figure", "bound", "or", "time", "status"] in lines
    assert ["speed", "1.25", "x", ">=", "1.1", "x", "pass"] in lines


@pytest.mark.slow
@pytest.mark.parametrize("program", [STUCK, CRASHING, NETWORK, "import not_there"])
def test_row_that_goes_wrong_costs_itself_alone(
    checkout, monkeypatch, without_gpu, program
):
    monkeypatch.setattr("rows._NEW_S", 2.0)
    make_package(checkout, "bad", bars=program)
    code, report = call(checkout, "--minutes", "2", "--only", "one", "bad")
    rows = {row["name"]: row for row in report["rows"]}
    assert code == 1
    assert report["ok"] is False
    # Where there is no network, a connection is refused at once, or never answered.
    status = rows["bars-bad"]["status"]
    assert status in {STUCK: {"stopped"}, NETWORK: {"stopped", "miss"}}.get(
        program, {"miss"}
    )
    assert rows["bars-one"]["status"] == "pass"


@pytest.mark.slow
def test_rows_that_do_not_fit_are_left_out_and_resumed(
    checkout, monkeypatch, without_gpu
):
    code, report = call(checkout, "--minutes", "0.001")
    assert code == 1
    assert {row["status"] for row in report["rows"][2:]} == {"left out"}
    assert report["missing"] == ["tests-one", "bars-one"]
    code, report = call(checkout, "--resume")
    assert code == 0
    assert report["missing"] == []
    # What is measured is not measured again.
    (checkout / "packages" / "one" / "benchmarks" / "bars.py").write_text(CRASHING)
    code, report = call(checkout, "--resume")
    assert code == 0


@pytest.mark.slow
def test_run_that_is_ended_keeps_what_was_measured(checkout):
    make_package(checkout, "two", bars=STUCK)
    out = checkout / "gpu.json"
    program = f"""
import sys
from pathlib import Path
sys.path.append({str(SCRIPT.parent)!r})
import run
run.ROOT = Path({str(checkout)!r})
sys.exit(run.main(sys.argv[1:]))
"""
    arguments = ["--allow-cpu", "--dist", str(checkout / "dist"), "--out", str(out)]
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        # The next row is the one that does not end.
        for line in process.stdout:
            if line.startswith("bars-one"):
                break
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    assert process.returncode == 128 + signal.SIGTERM
    report = json.loads(out.read_text())
    assert report["ok"] is False
    statuses = {row["name"]: row["status"] for row in report["rows"]}
    assert statuses["bars-one"] == "pass"
    assert "bars-two" in report["missing"]


@pytest.mark.slow
def test_dry_run_hides_gpus_and_goes_through_all(checkout, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    out = checkout / "gpu.json"
    arguments = ["--dry-run", "--dist", str(checkout / "dist"), "--out", str(out)]
    assert run.main(arguments) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["status"] for row in rows] == ["pass", "pass", "skip", "pass"]


@pytest.mark.slow
@pytest.mark.simulated_accelerator
def test_dry_run_tells_the_device_that_is_no_gpu_and_why_rows_end(checkout):
    out = checkout / "gpu.json"
    arguments = ["--dry-run", "--dist", str(checkout / "dist"), "--out", str(out)]
    assert run.main(arguments) == 0
    report = json.loads(out.read_text())
    assert report["hardware"]["accelerator"]["type"] == "sim"
    facts, install, tests, bars = report["rows"]
    assert facts["facts"]["hardware"] == report["hardware"]
    assert "x simulated accelerator" in facts["figure"]
    assert [install["status"], tests["status"], bars["status"]] == [
        "pass",
        "skip",
        "pass",
    ]
    for row in (tests, bars):
        assert row["figure"].endswith("ask for CUDA, and the device here is sim")


def test_tools_that_are_missing_are_named_before_anything_is_done(
    checkout, monkeypatch, capsys
):
    monkeypatch.setattr(run, "missing_tools", lambda packages: ["cmake", "a compiler"])
    assert run.main(["--dist", str(checkout / "dist")]) == 2
    assert "error: this machine lacks cmake, a compiler" in capsys.readouterr().err


def test_names_that_are_not_there_are_refused_with_those_that_are(checkout, capsys):
    assert run.main(["--dry-run", "--only", "three"]) == 2
    assert "no package 'three'; there are one" in capsys.readouterr().err
    assert run.main(["--dry-run", "--rows", "other"]) == 2
    assert "no row 'other'; there are first, second" in capsys.readouterr().err


def test_command_needs_no_package_for_its_help():
    """A bare interpreter must get as far as the help."""
    command = [sys.executable, "-S", "-E", str(SCRIPT), "--help"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert "--dry-run" in done.stdout
