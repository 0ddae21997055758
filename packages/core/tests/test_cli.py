"""The command `drivetrain`: what it prints, its exit codes, and others' commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from drivetrain_core import Choice, Plan, Reason, Rejected
from drivetrain_core._plugins import CHECKS, COMMANDS, OPTIMIZATIONS, SERVICES
from drivetrain_core.cli import main

pytestmark = pytest.mark.usefixtures("wide_terminal")


@pytest.fixture
def plan(tmp_path):
    whole = Plan(
        choices=(Choice("micro_batch", {"num": 2}), Choice("gone", {"a": 1})),
        made={"core": "0.1.0", "device": "a [fast] one"},
        measured={"vs_baseline": 1.5, "ci95": [1.4, 1.6]},
        why=(Reason(slot="micro_batch", chose="micro_batch(num=2)", because="[/x] 1"),),
        rejected=(
            Rejected(plan="fsdp", code="NEEDS_WORLD", because="one rank", fix="two"),
        ),
    )
    return str(whole.save(tmp_path / "given.yaml"))


def failed(argv, capsys):
    """Runs a command that must fail, and returns its one line."""
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert err.startswith("drivetrain: ")
    assert err.count("\n") == 1
    assert "Traceback" not in out + err
    return err


def words(text):
    return " ".join(text.split())


# apply


def test_apply_runs_the_script_under_the_plan(script, tmp_path, capsys):
    choice = Choice("micro_batch", {"num": 4})
    given = Plan(choices=(choice,)).save(tmp_path / "plan.yaml")
    assert main(["apply", str(given), script, "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    assert "from the script ['--epochs', '1']" in out
    assert "trained under micro_batch(num=4)" in out


MENTION = "import sys\nfrom drivetrain_core import accelerate\nuse = accelerate\n"


@pytest.fixture
def apply(tmp_path):
    """The words that apply a plan to a script."""
    return ["apply", str(Plan().save(tmp_path / "plan.yaml"))]


@pytest.mark.parametrize("body", ["", "sys.exit(0)", "raise SystemExit"])
def test_script_that_calls_no_accelerate_is_told(apply, body, tmp_path, capsys):
    script = tmp_path / "idle.py"
    script.write_text(MENTION + body)
    err = failed([*apply, str(script)], capsys)
    assert "idle.py ended without calling drivetrain_core.accelerate" in err


def test_script_that_cannot_call_accelerate_is_not_run(apply, tmp_path, capsys):
    script = tmp_path / "plain.py"
    script.write_text("import torch, helper\nopen('ran', 'w').close()\n")
    (tmp_path / "helper.py").write_text("import numpy\n")
    err = failed([*apply, str(script)], capsys)
    assert "plain.py was not run: neither it nor what it imports calls" in err
    assert not (tmp_path / "ran").exists()


def test_script_whose_call_cannot_be_seen_is_run_with_a_warning(
    apply, tmp_path, caplog
):
    script, helper = tmp_path / "train.py", tmp_path / "helper.py"
    script.write_text(
        "import importlib\nimportlib.import_module('hel' + 'per').run()\n"
    )
    helper.write_text("from drivetrain_core import accelerate\nrun = accelerate\n")
    with pytest.raises(TypeError, match="required positional arguments"):
        main([*apply, str(script)])
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "train.py names drivetrain_core.accelerate, but it imports importlib" in (
        record.getMessage()
    )


def test_script_that_is_missing_is_named(apply, capsys):
    assert "no script 'none.py'" in failed([*apply, "none.py"], capsys)


def test_script_that_leaves_with_an_error_keeps_its_code(apply, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(f"{MENTION}sys.exit(7)")
    with pytest.raises(SystemExit) as caught:
        main([*apply, str(script)])
    assert caught.value.code == 7


def test_script_that_raises_shows_its_own_error(apply, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(f"{MENTION}raise KeyError('mine')")
    with pytest.raises(KeyError, match="mine"):
        main([*apply, str(script)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "plan.yaml"),
        ("drivetrain_plan: 9\nstrategy: []\n", "must be 1, got 9"),
        ("drivetrain_plan: 1\nstrategy: []\nstrategy: []\n", "strategy"),
        ("drivetrain_plan: 1\nstrategy: [compil]\n", "nearest: compile"),
        ("drivetrain_plan: 1\nstrategy: [ddp]\n", "NEEDS_WORLD"),
        ("drivetrain_plan: 1\nstrategy: [", "plan.yaml"),
    ],
    ids=["missing", "version", "doubled key", "unknown", "impossible", "no YAML"],
)
def test_apply_of_a_plan_that_cannot_be_is_one_line(
    text, said, script, tmp_path, capsys
):
    path = tmp_path / "plan.yaml"
    if text is not None:
        path.write_text(text)
    assert said in failed(["apply", str(path), script], capsys)


# explain


def test_explain_says_what_a_plan_does_and_why(plan, capsys):
    assert main(["explain", plan]) == 1
    out, err = capsys.readouterr()
    out = words(out)
    assert f"{plan} cannot be applied: gone: there is no such optimization" in err
    assert "micro_batch(num=2) + gone(a=1)" in out
    assert "micro_batch(num=2): Splits" in out
    assert "there is no such optimization" in out
    assert "made: core 0.1.0, device a [fast] one" in out
    assert "ci95 [1.4, 1.6]" in out
    assert "[/x] 1" in out
    assert "NEEDS_WORLD" in out


def test_explain_of_the_baseline_is_short(tmp_path, capsys):
    path = Plan().save(tmp_path / "plan.yaml")
    assert main(["explain", str(path)]) == 0
    assert capsys.readouterr().out == "baseline\n"


def test_explain_json_is_the_plan(plan, capsys):
    assert main(["explain", plan, "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == Plan.load(plan).to_dict()
    assert "gone: there is no such optimization" in err


def test_explain_flags_a_value_that_is_not_allowed(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    path.write_text("drivetrain_plan: 1\nstrategy:\n- compile: {scope: hole}\n- ddp\n")
    assert main(["explain", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "compile(scope=hole): compile: option scope must be one of" in words(out)
    assert len(err.splitlines()) == 1
    assert err.startswith(
        f"drivetrain: {path} cannot be applied: compile: option scope"
    )


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_explain_of_a_plan_that_is_missing_is_one_line(flags, capsys):
    assert "none.yaml" in failed(["explain", "none.yaml", *flags], capsys)


# list


def test_list_shows_builtins_and_why_not(capsys):
    assert main(["list"]) == 0
    out = words(capsys.readouterr().out)
    assert "precision drivetrain-core" in out
    assert "no: " in out
    assert "one of several values, the first is its default" in out


def test_list_breaks_no_name(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list"]) == 0
    assert "activation_checkpoint " in capsys.readouterr().out


def test_list_json_has_every_builtin(capsys):
    assert main(["list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["precision"]["slot"] == "precision"
    assert rows["precision"]["options"]["dtype"][:2] == ["bf16_autocast", "fp32"]
    assert rows["fsdp"]["options"] == {"zero": [3, 2], "shard_size": None}
    assert rows["precision"]["why_not"] == ""
    assert "rank" in rows["ddp"]["why_not"]
    assert rows["precision"]["tried"] == "by default"
    assert rows["channels_last"]["tried"] == "when named"
    keys = {"name", "slot", "package", "options", "numerics", "summary", "why_not"}
    keys.add("tried")
    assert all(set(row) == keys for row in rows.values())


GOOD = """
from drivetrain_core import *

class Own(BaseOptimization):
    '''Says [bold] things.'''
    name, slot, phase = "own", Slot.KERNELS, Phase.RUNTIME
    def check(self, context, config, plan):
        return Reject(Code.NEEDS_LIBRARY, "acme is not there", "pip install 'acme[x]'")
    def apply(self, state, config):
        pass
"""
BROKEN = {
    "raises on import": ("raise RuntimeError('oh no')", "oh no"),
    "leaves on import": ("import sys; sys.exit('oh no')", "oh no"),
    "lacks a module": ("import no_such_module", "no_such_module"),
    "lacks the class": ("", "Own"),
    "is no optimization": ("class Own: name = 'own'", "it lacks"),
    "cannot be made": (
        "class Own:\n    def __init__(self): raise OSError('oh no')",
        "oh no",
    ),
    "leaves when it is made": (
        "import sys\nclass Own:\n    def __init__(self): sys.exit('oh no')",
        "oh no",
    ),
    "cannot be looked at": (
        "class Own:\n    def __getattr__(self, name): raise OSError('oh no')",
        "oh no",
    ),
}
FAILS_WHEN_ASKED = GOOD.replace("return Reject", "raise RuntimeError('oh no') #")


def install_optimization(distribute, code):
    distribute(
        "acme-own",
        [("own", "acme_own:Own")],
        module="acme_own",
        code=code,
        group=OPTIMIZATIONS,
    )


def test_list_shows_a_packages_own_with_what_to_install(distribute, capsys):
    install_optimization(distribute, GOOD)
    assert main(["list"]) == 0
    out = words(capsys.readouterr().out)
    assert "own acme-own no: acme is not there; pip install 'acme[x]'" in out


@pytest.mark.parametrize("kind", BROKEN)
def test_list_shows_a_broken_plugin_and_goes_on(distribute, capsys, kind):
    code, said = BROKEN[kind]
    install_optimization(distribute, code)
    assert main(["list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert said in rows["own"]["why_not"]
    assert rows["own"]["package"] == "acme-own"
    assert rows["precision"]["why_not"] == ""
    assert main(["list"]) == 0
    assert "precision" in capsys.readouterr().out


def test_list_shows_a_plugin_that_fails_when_asked(distribute, capsys):
    install_optimization(distribute, FAILS_WHEN_ASKED)
    assert main(["list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert "oh no" in rows["own"]["why_not"]


# doctor


def test_doctor_finds_this_machine_well(capsys):
    assert main(["doctor", "--json"]) == 0
    checks = {c["name"]: c for c in json.loads(capsys.readouterr().out)}
    assert {"python", "torch", "device", "process groups"} <= set(checks)
    assert all(check["state"] in ("ok", "warn") for check in checks.values())
    assert "drivetrain-core" in checks["packages"]["detail"]


@pytest.fixture
def quick_doctor(monkeypatch):
    """A doctor that asks no package for a check, which may start a process."""
    from drivetrain_core._command_line import doctor

    monkeypatch.setattr(doctor, "_checks_of_packages", list)


def test_doctor_prints_a_table(quick_doctor, capsys):
    assert main(["doctor"]) == 0
    assert "ok python" in words(capsys.readouterr().out)


CHECK = """
def check():
    return "warn", "no acme: pip install 'acme[all]'"

def broken():
    raise OSError("no such [/device]")

def odd():
    return "bad", "x"

def bare():
    return "ok", None

def leaves():
    raise SystemExit("oh no")
"""


def test_doctor_asks_packages_for_their_checks(distribute, capsys):
    names = ("check", "broken", "odd", "bare", "leaves")
    entries = [(f"acme_{name}", f"acme:{name}") for name in names]
    distribute("acme", entries, module="acme", code=CHECK, group=CHECKS)
    assert main(["doctor"]) == 1
    out = words(capsys.readouterr().out)
    assert "warn acme check no acme: pip install 'acme[all]'" in out
    assert "fail acme broken OSError: no such [/device]" in out
    assert "fail acme odd the check returned the state 'bad': x" in out
    assert "ok acme bare None" in out
    assert "fail acme leaves SystemExit: oh no" in out


PROVIDERS = """
NUMBER = 3

class Raises:
    def __init__(self):
        raise OSError("oh no")

class Odd:
    pass
"""


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("NUMBER", "cannot be called"),
        ("Raises", "oh no"),
        ("Odd", "does not follow PlanSearch"),
    ],
)
def test_doctor_tries_what_accelerate_will_ask(
    distribute, quick_doctor, capsys, monkeypatch, made, said
):
    from drivetrain_core._command_line import doctor

    found = doctor.installed
    monkeypatch.setattr(
        doctor,
        "installed",
        lambda group: [
            p for p in found(group) if p.name != "plan_search" or "acme" in p
        ],
    )
    monkeypatch.setattr(
        "drivetrain_core._plugins.installed",
        lambda group: [
            p for p in found(group) if p.name != "plan_search" or "acme" in p
        ],
    )
    distribute(
        "acme",
        [("plan_search", f"acme_search:{made}")],
        module="acme_search",
        code=PROVIDERS,
        group=SERVICES,
    )
    assert main(["doctor", "--json"]) == 1
    checks = {c["name"]: c for c in json.loads(capsys.readouterr().out)}
    assert checks["services: plan_search"]["state"] == "fail"
    assert said in checks["services: plan_search"]["detail"]


def test_doctor_fails_where_two_packages_provide_a_service(
    distribute, quick_doctor, capsys
):
    for name in ("acme-a", "acme-b"):
        distribute(name, [("anvils", "json:loads")], group=SERVICES)
    assert main(["doctor"]) == 1
    assert "is declared more than once" in words(capsys.readouterr().out)


@pytest.mark.parametrize("kind", BROKEN)
def test_doctor_names_a_broken_plugin_and_fails(distribute, quick_doctor, capsys, kind):
    code, said = BROKEN[kind]
    install_optimization(distribute, code)
    assert main(["doctor", "--json"]) == 1
    checks = {c["name"]: c for c in json.loads(capsys.readouterr().out)}
    assert checks["optimizations: own"]["state"] == "fail"
    assert said in checks["optimizations: own"]["detail"]
    assert checks["torch"]["state"] == "ok"
    assert main(["doctor"]) == 1


def test_doctor_survives_a_check_that_raises(quick_doctor, capsys, monkeypatch):
    from drivetrain_core._command_line import doctor

    def broken():
        message = "no such [/device]"
        raise OSError(message)

    monkeypatch.setattr(doctor, "_device", broken)
    assert main(["doctor"]) == 1
    assert "fail device OSError: no such [/device]" in words(capsys.readouterr().out)


# commands of other packages

COMMAND = """
def populate_parser(parser):
    parser.add_argument("--loud", action="store_true")
    parser.set_defaults(run=run)

def run(arguments):
    print("acme speaks", arguments.loud)
    return 3
"""


def install_command(distribute, code=COMMAND, *, name="acme", command="acme"):
    module = name.replace("-", "_")
    distribute(
        name,
        [(command, f"{module}:populate_parser")],
        module=module,
        code=code,
        group=COMMANDS,
    )


def test_command_of_a_package_is_mounted(distribute, capsys):
    install_command(distribute)
    assert main(["acme", "--loud"]) == 3
    assert capsys.readouterr().out == "acme speaks True\n"
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "commands of acme" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "raise RuntimeError('oh no')",
        "def populate_parser(parser): raise RuntimeError('oh no')",
        "populate_parser = 'oh no'",
        "import sys\ndef populate_parser(parser): sys.exit('oh no')",
    ],
    ids=["on import", "when it is mounted", "no function", "when it exits"],
)
def test_command_that_is_broken_fails_alone(distribute, capsys, code):
    install_command(distribute, code)
    err = failed(["acme"], capsys)
    assert "acme" in err
    assert "oh no" in err or "not callable" in err
    assert main(["list"]) == 0


def test_command_says_what_it_is_for(distribute, capsys):
    described = (
        'def populate_parser(parser):\n    parser.description = "sells 50% of anvils"\n'
    )
    install_command(distribute, described)
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "sells 50% of anvils" in capsys.readouterr().out


def test_command_of_a_package_that_is_missing_names_it(capsys, monkeypatch):
    monkeypatch.setattr("drivetrain_core.cli.installed", lambda _: ())
    err = failed(["search", "--budget", "90s", "train.py"], capsys)
    assert "search needs another package: pip install drivetrain-search" in err


def test_command_with_the_name_of_another_is_written_with_its_package(
    distribute, capsys
):
    install_command(distribute, name="acme-a", command="list")
    assert main(["acme-a:list"]) == 3
    assert main(["list", "--json"]) == 0
    install_command(distribute, name="acme-b", command="fast")
    install_command(distribute, name="acme-c", command="fast")
    assert main(["acme-b:fast"]) == 3
    assert main(["acme-c:fast"]) == 3
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["fast"])
    assert "acme-b:fast" in capsys.readouterr().err


# the whole


def test_no_command_shows_the_help(capsys):
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "say what a plan does and why" in err


def test_version_is_that_of_every_package(capsys):
    from importlib.metadata import version

    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"drivetrain-core {version('drivetrain-core')}" in lines
    assert lines == sorted(lines)
    assert all(re.fullmatch(r"drivetrain[\w-]* \d+(\.\d+)+\S*", line) for line in lines)


@pytest.mark.parametrize("argv", [["aply"], ["list", "--js"], ["apply"]])
def test_usage_errors_end_with_two(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: drivetrain" in capsys.readouterr().err


def test_failure_of_the_module_is_one_line_and_no_traceback(tmp_path):
    command = [sys.executable, "-m", "drivetrain_core.cli", "explain", "none.yaml"]
    done = subprocess.run(
        command, check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("drivetrain: none.yaml")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_output_that_nobody_reads_is_no_error(tmp_path):
    """As in `drivetrain list | head -1`."""
    command = [sys.executable, "-m", "drivetrain_core.cli", "list"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command, check=False, stdout=writer, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(writer)
    assert "Traceback" not in done.stderr
