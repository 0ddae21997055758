"""The command lists and explains optimizers, for people and for programs."""

import argparse
import json
import subprocess
import sys

import pytest

from drivetrain_optim.batched._paths import PATHS
from drivetrain_optim.checks._options import AGD_OPTIONS
from drivetrain_optim.cli import main, populate_parser


def test_list_shows_each_optimizer_and_where_it_runs(capsys):
    assert main(["list"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "RUNS", "ON", "WHAT", "IT", "DOES"]
    assert [line.split()[0] for line in lines] == ["agd", "lamb", "wsam"]
    assert "loop, foreach, native, triton, capturable  Switches" in lines[0]


def test_list_as_json(capsys):
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["agd"]["paths"] == list(PATHS)


def test_explain_shows_equations_and_options(capsys):
    assert main(["explain", "AGD"]) == 0
    out = capsys.readouterr().out
    assert "b_t = beta2 * b_{t-1} + (1 - beta2) * s_t^2" in out
    for option, rule in AGD_OPTIONS.items():
        (line,) = [x for x in out.splitlines() if x.startswith(f"{option} ")]
        assert str(rule.default) in line
        assert rule.meaning in line


def test_explain_as_json(capsys):
    assert main(["explain", "agd", "--json"]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert explained["options"]["delta"]["default"] == 1e-5
    assert explained["options"].keys() == AGD_OPTIONS.keys()
    assert len(explained["equations"]) == 5


def test_explain_of_an_unknown_name_says_the_nearest(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["explain", "agb"])
    assert caught.value.code == 2
    assert "there is no optimizer 'agb'; nearest: agd" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [[], ["lis"], ["list", "--js"], ["explain"], ["explain", "nosuch"]]
)
def test_usage_errors_have_status_2(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: drivetrain-optim" in capsys.readouterr().err


def test_populate_parser_works_below_another_command(capsys):
    parser = argparse.ArgumentParser(prog="drivetrain")
    commands = parser.add_subparsers()
    populate_parser(commands.add_parser("optim"))
    args = parser.parse_args(["optim", "list"])
    assert args.run(args) == 0
    assert "agd" in capsys.readouterr().out


def test_list_does_not_import_torch():
    code = (
        "import sys; from drivetrain_optim.cli import main; status = main(['list']); "
        "sys.exit(status or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_reader_that_goes_away_is_no_traceback():
    code = "import sys; from drivetrain_optim.cli import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (1, b"")
