"""A checkpoint is found by its folder, also where that was given another name."""

import json
from pathlib import Path

import pytest
import torch

from drivetrain_checkpoint import (
    Checkpointer,
    ForeignCheckpointError,
    detect,
    list_checkpoints,
    load,
    verify,
)
from drivetrain_checkpoint._storage.open_checkpoint import open_checkpoint
from drivetrain_checkpoint.cli import main
from drivetrain_core import CheckpointError


@pytest.fixture
def best(tmp_path):
    """A checkpoint whose folder was renamed; beside it one that was not, of step 20."""
    checkpointer = Checkpointer(tmp_path / "run", job="pick")
    for step in (10, 20):
        state = {"x": torch.full((2,), float(step)), "position": step}
        assert checkpointer.save(step, state).wait(60)
    checkpointer.stop_daemon()
    found = tmp_path / "my-best"
    Path(list_checkpoints(tmp_path / "run")[0].url).rename(found)
    return found


def test_renamed_checkpoint_is_read_as_what_it_is(best, tmp_path, capsys):
    assert detect(best) == "drivetrain"
    into = {"x": torch.zeros(2)}
    assert load(best, into) == []
    assert into["x"].tolist() == [10, 10]
    assert main(["inspect", str(best), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 10
    assert main(["diff", str(best), str(best)]) == 0
    assert "all plain data are equal" in capsys.readouterr().out
    assert main(["diff", str(best), str(tmp_path / "run")]) == 1
    assert "position" in capsys.readouterr().out
    assert main(["verify", str(best)]) == 0
    with pytest.raises(CheckpointError, match="my-best is that of step 10, not 20"):
        load(best, into, step=20)


def test_renamed_checkpoint_is_copied_under_its_proper_name(best, tmp_path):
    assert main(["cp", str(best), str(tmp_path / "run")]) == 0
    assert [found.step for found in list_checkpoints(tmp_path / "run")] == [10, 20]
    state = {"x": torch.zeros(2), "position": 0}
    checkpointer = Checkpointer(tmp_path / "run", job="pick")
    assert checkpointer.restore(state, 10) == 10
    checkpointer.stop_daemon()


def test_damage_of_a_renamed_checkpoint_is_told(best):
    manifest = best / "manifest.json"
    text = bytearray(manifest.read_bytes())
    text[-10] ^= 1
    manifest.write_bytes(text)
    assert verify(best)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        load(best, {"x": torch.zeros(2)})


def test_save_that_was_never_committed_is_not_read(best):
    (best / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        load(best, {"x": torch.zeros(2)})


def test_manifest_of_another_program_means_nothing(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ForeignCheckpointError, match="no checkpoint of a known format"):
        detect(tmp_path)


def test_checkpoint_of_torchs_own_format_is_named(tmp_path):
    (tmp_path / ".metadata").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"torch's own: FileSystemReader reads"):
        open_checkpoint(tmp_path)
