"""Commands that moved from one package to another are found under their old names."""

from __future__ import annotations

import pytest

from drivetrain_comm.cli import main as comm
from drivetrain_elastic.cli import main as elastic


@pytest.mark.parametrize(
    ("main", "words", "new"),
    [
        (comm, ["topo", "--file", "/nowhere"], "fabric topo"),
        (comm, ["fabric", "--spec", "/nowhere"], "fabric simulate"),
        (elastic, ["diagnose", "--output", "/nowhere"], "health diagnose"),
        (elastic, ["cost", "/nowhere", "--prices", "/nowhere"], "cloud cost"),
    ],
)
def test_old_command_leads_to_the_new_one(main, words, new, capsys):
    assert main(words) in {1, 2}
    said, *error = capsys.readouterr().err.splitlines()
    assert said.endswith(f"{words[0]} is now drivetrain {new}")
    assert "/nowhere" in " ".join(error)
