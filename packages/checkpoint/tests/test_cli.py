"""The command lists, shows and verifies checkpoints."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from drivetrain_checkpoint import (
    Checkpointer,
    Keep,
    detect,
    list_checkpoints,
    load,
    torch_load,
    torch_save,
    verify,
)
from drivetrain_checkpoint._daemon.client import visit
from drivetrain_checkpoint.cli import main


@pytest.fixture
def run(tmp_path):
    """A folder with checkpoints of steps 1 to 4, of a job whose daemon has ended."""
    checkpointer = Checkpointer(tmp_path / "run", job="cli", keep=None)
    for step in range(1, 5):
        state = {"weights": torch.arange(6.0).view(2, 3) * step, "position": step}
        checkpointer.save(step, state).wait(60)
    checkpointer.stop_daemon()
    return tmp_path / "run"


def steps(folder):
    return [info.step for info in list_checkpoints(folder)]


def test_command_lists_inspects_and_verifies(tmp_path, capsys):
    checkpointer = Checkpointer(tmp_path, job="cli")
    checkpointer.save(12, {"weights": torch.zeros(3, 4)}).wait(60)
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
    assert "has no checkpoint" in capsys.readouterr().err
    assert main(["daemon", "status", str(tmp_path)]) == 1
    assert "no daemon serves job 'default'" in capsys.readouterr().out


@pytest.mark.parametrize("to", ["safetensors", "dcp", "torch", "drivetrain"])
def test_convert_writes_every_format_and_back(tmp_path, run, to, capsys):
    out, back = str(tmp_path / "out"), str(tmp_path / "back")
    assert main(["convert", str(run), out, "--to", to, "--step", "3"]) == 0
    assert out in capsys.readouterr().out
    assert detect(out) == to
    found = {"weights": torch.zeros(2, 3)}
    load(out, found)
    assert torch.equal(found["weights"], torch.arange(6.0).view(2, 3) * 3)
    assert main(["convert", out, back, "--to", "drivetrain", "--json"]) == 0
    url = json.loads(capsys.readouterr().out)["written"]
    assert verify(url) == []
    if to != "safetensors":  # which holds no plain data
        assert main(["diff", url, str(run), "--step-two", "3"]) == 0
        state = {"weights": torch.zeros(2, 3), "position": 0}
        other = Checkpointer(back, job="converted")
        other.restore(state)
        other.stop_daemon()
        assert state["position"] == 3
    again = [str(run), out, "--to", to]
    status = main(["convert", *again])
    assert status == (0 if to == "drivetrain" else 1)
    if status:
        assert "already" in capsys.readouterr().err


def test_converted_training_state_is_restored(tmp_path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    checkpointer = Checkpointer(tmp_path / "run", job="cli")
    checkpointer.save(7, {"model": model, "optimizer": optimizer}).wait(60)
    checkpointer.stop_daemon()
    out = str(tmp_path / "out")
    assert main(["convert", str(tmp_path / "run"), out, "--to", "drivetrain"]) == 0
    again = nn.Linear(3, 2)
    state = {"model": again, "optimizer": torch.optim.AdamW(again.parameters())}
    other = Checkpointer(out, job="x", adopt=True)
    assert other.restore(state) == 7
    other.stop_daemon()
    assert torch.equal(again.weight, model.weight)
    assert main(["convert", out, str(tmp_path / "a.pt"), "--to", "torch"]) == 0
    assert torch.equal(torch_load(tmp_path / "a.pt")["model.weight"], model.weight)


def test_diff_tells_all_that_differs(tmp_path, run, capsys):
    first, last = list_checkpoints(run)[0].url, list_checkpoints(run)[-1].url
    assert main(["diff", first, first]) == 0
    assert "are equal" in capsys.readouterr().out
    assert main(["diff", first, last, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found == [
        {
            "name": "weights",
            "because": "5 of 6 elements differ, by up to 15",
            "max_abs": 15.0,
        },
        {"name": "position", "because": "1 and 4", "max_abs": None},
    ]
    nan = torch.tensor([float("nan"), 0.0])
    torch_save({"a": torch.ones(2), "b": torch.ones(3), "c": nan}, tmp_path / "a.pt")
    torch_save({"b": torch.ones(2), "c": nan * 1, "d": 3}, tmp_path / "b.pt")
    assert main(["diff", str(tmp_path / "a.pt"), str(tmp_path / "b.pt")]) == 1
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["a", "b", "d"]
    assert "[3] torch.float32 and [2] torch.float32" in lines[1]


def test_cp_copies_and_verifies(tmp_path, run, capsys):
    target = tmp_path / "copies"
    assert main(["cp", str(run), str(target), "--step", "2"]) == 0
    (info,) = list_checkpoints(target)
    assert info.step == 2
    assert verify(info.url) == []
    assert main(["cp", str(run), str(target), "--step", "2"]) == 1
    assert "is there already" in capsys.readouterr().err
    assert main(["cp", str(run), f"file://{tmp_path}/url", "--json"]) == 0
    assert steps(tmp_path / "url") == [4]
    file = Path(list_checkpoints(run)[0].url, "rank-00000.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert main(["cp", str(run), str(target), "--step", "1"]) == 1
    assert "the header, weights" in capsys.readouterr().err
    assert steps(target) == [2]


def test_gc_keeps_what_it_is_told(tmp_path, run, capsys):
    abandoned = run / "step-0000000009-0123456789abcdef"
    abandoned.mkdir()
    old = time.time() - 7 * 3600
    os.utime(abandoned, (old, old))
    where = ["gc", str(run), "--keep", "1"]
    assert main([*where, "--every", "2", "--dry-run", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [name[:15] for name in answer["old"]] == [
        "step-0000000001",
        "step-0000000003",
    ]
    assert answer["abandoned"] == [abandoned.name]
    assert not answer["deleted"]
    assert steps(run) == [1, 2, 3, 4]
    assert main([*where, "--older-than", "1"]) == 0
    assert steps(run) == [1, 2, 3, 4]
    assert not abandoned.exists()
    assert main([*where, "--every", "2"]) == 0
    assert steps(run) == [2, 4]
    assert main(where) == 0
    assert steps(run) == [4]
    assert main(where) == 0
    assert "are kept" in capsys.readouterr().out
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["gc", str(empty), "--keep", "1"]) == 1
    assert "nothing is deleted" in capsys.readouterr().err
    with pytest.raises(SystemExit) as found:
        main(["gc", str(run), "--keep", "0"])
    assert found.value.code == 2


def test_gc_counts_no_checkpoint_that_lacks_a_file(run, caplog):
    newest = max(run.glob("step-*"))
    (newest / "rank-00000.safetensors").unlink()
    assert main(["gc", str(run), "--keep", "1"]) == 0
    assert f"{newest}/rank-00000.safetensors" in caplog.text
    assert steps(run) == [3, 4]


def test_recover_brings_memory_to_storage(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    where = [str(tmp_path / "run"), "--job", "cli"]
    assert main(["recover", *where]) == 1
    assert "no daemon serves" in capsys.readouterr().err
    assert main(["daemon", "status", *where]) == 1
    assert main(["daemon", "start", *where]) == 0
    assert main(["recover", *where]) == 1
    assert "holds no save" in capsys.readouterr().err
    checkpointer = Checkpointer(tmp_path / "run", job="cli")
    checkpointer.save(6, {"weights": torch.ones(3)}, persist=False)
    assert steps(tmp_path / "run") == []
    assert main(["recover", *where]) == 0
    assert "step 6 is durable" in capsys.readouterr().out
    assert steps(tmp_path / "run") == [6]
    assert main(["recover", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 6
    assert main(["daemon", "stop", "--at-once", *where]) == 0


def test_recover_finds_what_lies_in_folders_of_the_job_alone(tmp_path, capsys):
    checkpointer = Checkpointer(tmp_path, job="cli")
    checkpointer.save(6, {"weights": torch.ones(3)}, under="best", persist=False)
    assert main(["recover", str(tmp_path), "--job", "cli"]) == 0
    assert "step 6 is durable" in capsys.readouterr().out
    assert steps(tmp_path / "best") == [6]
    checkpointer.stop_daemon()


def test_recover_says_why_it_cannot(tmp_path, capsys):
    checkpointer = Checkpointer(tmp_path / "run", job="cli")
    (tmp_path / "run").write_text("no folder can be made here")
    checkpointer.save(6, {"weights": torch.ones(3)}, persist=False)
    assert main(["recover", str(tmp_path / "run"), "--job", "cli"]) == 1
    assert "step 6 is not durable: cannot" in capsys.readouterr().err
    checkpointer.stop_daemon(at_once=True)


def test_looking_at_a_daemon_does_not_change_what_it_keeps(tmp_path):
    checkpointer = Checkpointer(tmp_path, job="cli", keep=Keep(last=None))
    for step in range(5):
        checkpointer.save(step, {"weights": torch.ones(3)}).wait(60)
        assert main(["daemon", "status", str(tmp_path), "--job", "cli"]) == 0
    visit("cli", str(tmp_path), {"op": "settle", "timeout_s": 5.0})
    assert steps(tmp_path) == [0, 1, 2, 3, 4]
    checkpointer.stop_daemon()


@pytest.mark.slow
def test_daemon_that_is_stopped_answers(tmp_path):
    where = [str(tmp_path), "--job", "cli"]
    for _ in range(10):
        assert main(["daemon", "start", *where]) == 0
        assert main(["daemon", "stop", "--at-once", *where]) == 0


def test_reader_that_goes_away_is_no_traceback(run):
    code = "import sys; from drivetrain_checkpoint.cli import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "ls", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (1, b"")


def test_options_of_storages_are_json_or_text(run, capsys):
    more = ["--storage-option", "anon=true", "--storage-option", "key=a=b"]
    assert main(["ls", f"file://{run}", *more]) == 0
    with pytest.raises(SystemExit) as found:
        main(["ls", str(run), "--storage-option", "nothing"])
    assert found.value.code == 2
    assert "KEY=VALUE is expected" in capsys.readouterr().err


def test_progress_is_shown_to_people_only(run, capsys):
    url = list_checkpoints(run)[0].url
    assert main(["verify", url]) == 0
    assert "verify: 100 %" in capsys.readouterr().err
    assert main(["verify", str(run), "--step", "2", "--json"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["ls", "verify", "gc", "cp", "recover", "daemon"])
def test_light_commands_import_no_torch(command):
    code = (
        "import sys\nfrom drivetrain_checkpoint.cli import main\n"
        f"try: main([{command!r}, '--help'])\nexcept SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    "argv",
    [
        ["ls", "missing"],
        ["verify", "missing"],
        ["verify", "missing", "--step", "3"],
        ["inspect", "missing"],
        ["cp", "missing", "out"],
        ["gc", "missing", "--keep", "1"],
        ["recover", "missing"],
        ["daemon", "status", "missing"],
        ["daemon", "stop", "missing"],
    ],
    ids=" ".join,
)
def test_folder_that_is_missing_is_called_so(argv, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 1
    expected = f"drivetrain-checkpoint: there is no folder {tmp_path / 'missing'}\n"
    assert capsys.readouterr() == ("", expected)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "argv", [["diff", "a", "b"], ["convert", "a", "b", "--to", "dcp"]]
)
def test_checkpoint_of_any_format_that_is_missing_is_called_so(argv, capsys):
    assert main(argv) == 1
    assert capsys.readouterr().err == "drivetrain-checkpoint: a is not there\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["inspect", "a", "--step", "-1"], "--step: must be at least 0, got -1"),
        (["diff", "a", "b", "--step-two", "x"], "--step-two: must be a whole number"),
        (["gc", "a", "--keep", "1", "--every", "0"], "--every: must be at least 1"),
        (["gc", "a", "--keep", "1", "--older-than", "nan"], "--older-than: must be a"),
        (["recover", "a", "--timeout", "-1"], "--timeout: must be at least 0, got -1"),
        (["ls", "s3://"], "argument folder: s3:// names no place"),
        (["cp", "a", "s3:///"], "argument target: s3:/// names no place"),
    ],
)
def test_wrong_use_names_the_option(argv, message, capsys):
    with pytest.raises(SystemExit) as found:
        main(argv)
    assert found.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"drivetrain-checkpoint {argv[0]}: error: argument ")
    assert message in last
