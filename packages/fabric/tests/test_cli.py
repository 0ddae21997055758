"""The command `drivetrain-fabric`: wrong use is told by the command that was called."""

import pytest

from drivetrain_fabric.cli import main
from drivetrain_testing import check_wrong_use, exit_status


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["advise", "--ranks", "0"], "--ranks: must be from 1 to 1e+09, got 0"),
        (
            ["advise", "--delay-ms", "-5"],
            "--delay-ms: must be from 0 to 60,000, got -5",
        ),
        (["advise", "--gbps", "nan"], "--gbps: must be a number, got 'nan'"),
        (["advise", "--flow-gbps", "0"], "--flow-gbps: must be more than 0, got 0"),
        (["advise", "--paths", "1.5"], "--paths: must be a whole number, got '1.5'"),
        (["advise", "--dscp", "64"], "--dscp: must be from 0 to 63, got 64"),
        (
            ["advise", "--nccl-version", "two"],
            "three numbers such as 2.29.7, got 'two'",
        ),
    ],
)
def test_wrong_use_is_told_by_its_command(words, message, capsys):
    status = exit_status(main, words)
    program = f"drivetrain-fabric {words[0]}: error:"
    check_wrong_use(program, status, *capsys.readouterr(), message)
