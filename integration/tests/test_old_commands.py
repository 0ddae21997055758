"""Commands that moved from one package to another are found under their old names."""

from __future__ import annotations

import pytest

from drivetrain_comm.cli import main


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (["topo", "--file", "/nowhere"], "fabric topo"),
        (["fabric", "--spec", "/nowhere"], "fabric simulate"),
    ],
)
def test_old_command_leads_to_the_new_one(words, new, capsys):
    assert main(words) == 1
    said, error = capsys.readouterr().err.splitlines()
    assert f"is now drivetrain {new}" in said
    assert "/nowhere" in error
