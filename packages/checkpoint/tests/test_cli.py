"""The command lists, shows and verifies checkpoints."""

import json

import torch

from drivetrain_checkpoint import Checkpointer, list_checkpoints
from drivetrain_checkpoint.cli import main


def test_command_lists_inspects_and_verifies(tmp_path, capsys):
    checkpointer = Checkpointer(tmp_path, job="cli")
    checkpointer.save(12, {"weights": torch.zeros(3, 4)}).wait(20)
    (saved,) = list_checkpoints(tmp_path)
    assert main(["ls", str(tmp_path)]) == 0
    assert "12" in capsys.readouterr().out.splitlines()[1]
    assert main(["ls", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["step"] == 12
    assert main(["inspect", saved.url]) == 0
    assert "weights  F32    [3, 4]" in capsys.readouterr().out
    assert main(["inspect", saved.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"] == "cli"
    assert main(["verify", saved.url]) == 0
    assert "every byte" in capsys.readouterr().out
    where = [str(tmp_path), "--job", "cli"]
    assert main(["daemon", "status", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"]["0"]["steps"] == [12]
    assert main(["daemon", "stop", *where]) == 0


def test_command_says_what_is_wrong(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 1
    assert "never committed" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path)]) == 1
    assert "No such file" in capsys.readouterr().err
    assert main(["daemon", "status", str(tmp_path)]) == 1
    assert "no daemon serves job 'default'" in capsys.readouterr().out
