"""The command lists ops and explains choices, for people and for programs."""

import argparse
import json
import subprocess
import sys

import pytest
import torch

from drivetrain_kernels._explain import OPS
from drivetrain_kernels.cli import main, populate_parser


def test_list_shows_every_op_and_what_is_here(capsys):
    assert main(["list", "--device", "cpu"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["OP", "IMPLEMENTATION", "HERE", "WHY"]
    ops = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert ops == list(OPS)
    chosen = [line for line in lines if " auto " in line]
    assert len(chosen) == len(OPS)


def test_list_as_json(capsys):
    assert main(["list", "--json", "--device", "cpu", "--dtype", "float64"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(OPS)
    assert found["moe"]["grouped_mm"] == {"state": "no", "because": "takes no float64"}
    assert found["moe"]["split"]["state"] == "auto"
    assert found["moe"]["reference"] == {"state": "there", "because": None}


def test_explain_as_json(capsys):
    argv = ["explain", "swiglu", "--device", "cpu", "--impl", "reference", "--json"]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["op"], found["implementation"]) == ("swiglu", "reference")
    assert found["because"] == "it was asked for by name"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["explain", "ropes"], "argument OP: there is no op 'ropes'; nearest: rope"),
        (
            ["explain", "rope", "--device", "cpu", "--impl", "x"],
            "no implementation 'x'",
        ),
        (
            ["explain", "rope", "--device", "nowhere"],
            "--device: ",
        ),
    ],
    ids=["op", "implementation", "device"],
)
def test_names_of_nothing_are_wrong_use(argv, message, capsys):
    try:
        status = main(argv)
    except SystemExit as left:
        status = left.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("drivetrain-kernels explain: error: ")
    assert message in last


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_that_is_not_here_is_one_line_and_status_1(capsys):
    assert main(["explain", "rope", "--device", "cuda"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("drivetrain-kernels: there is no device 'cuda' here: ")
    assert err.count("\n") == 1


def test_name_of_no_op_is_told_without_torch():
    code = (
        "import sys; from drivetrain_kernels.cli import main\n"
        "try: main(['explain', 'nosuch'])\n"
        "except SystemExit: sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("argv", [[], ["lis"], ["list", "--js"], ["explain"]], ids=str)
def test_usage_errors_have_status_2(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: drivetrain-kernels" in capsys.readouterr().err


def test_populate_parser_works_below_another_command(capsys):
    parser = argparse.ArgumentParser(prog="drivetrain")
    commands = parser.add_subparsers()
    populate_parser(commands.add_parser("kernels"))
    args = parser.parse_args(["kernels", "explain", "geglu", "--device", "cpu"])
    assert args.run(args) == 0
    assert capsys.readouterr().out.startswith("geglu: torch, because: ")


def test_parser_does_not_import_torch():
    code = (
        "import sys; from drivetrain_kernels.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.slow
def test_command_runs_as_a_module():
    command = [sys.executable, "-m", "drivetrain_kernels.cli", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "rms_norm" in done.stdout
