"""Commands that moved from one package to another are found under their old names."""

from __future__ import annotations

import pytest

from drivetrain_comm._cli import doctor
from drivetrain_comm.cli import main


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (["topo", "--file", "/nowhere"], "fabric topo"),
        (["fabric", "--spec", "/nowhere"], "fabric simulate"),
        (["doctor", "--as", "env", "--root", "/nowhere"], "fabric advise"),
    ],
)
def test_old_command_leads_to_the_new_one(words, new, capsys):
    assert main(words) == 1
    said, error = capsys.readouterr().err.splitlines()
    assert f"is now drivetrain {new}" in said
    assert "/nowhere" in error


def test_old_command_leaves_to_the_new_one_what_was_not_given(monkeypatch):
    ran = []
    monkeypatch.setattr(doctor, "run_moved", lambda *words: ran.append(words) or 0)
    assert (
        main(["doctor", "--as", "env"])
        == main(["doctor", "--dscp", "1", "--json"])
        == 0
    )
    assert main(["doctor", "--ranks", "4", "--as", "diff"]) == 0
    new = "fabric advise"
    assert ran == [
        ("drivetrain-comm doctor --as", new, ["--as", "env"]),
        ("drivetrain-comm doctor --dscp", new, ["--dscp", "1", "--json"]),
        ("drivetrain-comm doctor --as", new, ["--as", "diff", "--ranks=4"]),
    ]


def test_old_command_with_options_of_both_is_refused(capsys):
    assert main(["doctor", "--master", "here", "--as", "env"]) == 2
    assert "call one after the other" in capsys.readouterr().err
