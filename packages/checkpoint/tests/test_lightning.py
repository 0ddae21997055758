"""Lightning's trainer saves in two stages, is killed, and goes on as if it were not."""

import os
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from drivetrain_checkpoint import CorruptCheckpointError, list_checkpoints, verify
from drivetrain_core import CheckpointError
from drivetrain_testing import run_ranks

pytestmark = [
    pytest.mark.extra,
    # Lightning warns of few workers, of small data, and of folders that are there.
    pytest.mark.filterwarnings("ignore"),
]

RUN = textwrap.dedent(
    """
    import os, signal, sys, warnings
    warnings.simplefilter("ignore")
    import torch
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint
    from drivetrain_checkpoint.adapters.lightning import TwoStageCheckpointIO

    class Model(pl.LightningModule):
        def __init__(self, width=8):
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Sequential(
                torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)
            )

        def training_step(self, batch, index):
            loss = self.net(batch).square().mean()
            self.log("loss", loss, on_epoch=True)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            return [optimizer], [scheduler]

    class KillAfterSave(Callback):
        # The kill comes when the save is in memory, wherever the daemon is with it.
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    folder, kill_at, resume, devices, result = sys.argv[1:]
    kill_at = int(kill_at)
    torch.manual_seed(0)
    data = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4)
    model = Model()
    every = ModelCheckpoint(
        folder, monitor="loss", save_top_k=2, save_last=True, save_on_train_epoch_end=True
    )
    trainer = pl.Trainer(
        max_epochs=6, plugins=[TwoStageCheckpointIO()], callbacks=[every, KillAfterSave()],
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        accelerator="cpu", devices=int(devices),
        strategy="ddp" if int(devices) > 1 else "auto",
    )
    trainer.fit(model, data, ckpt_path=resume or None)
    if trainer.is_global_zero:
        torch.save({"model": model.state_dict(), "best": every.best_model_path}, result)
    """
)


def run(folder, *, kill_at=-1, resume="", devices=1, result):
    command = [str(folder), str(kill_at), str(resume), str(devices), str(result)]
    script = Path(result).with_suffix(".py")
    script.write_text(RUN)
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(script), *command], env=env, check=False, timeout=200
    ).returncode


def weights(result):
    return torch.load(result)["model"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a training that was not killed ends with."""
    tmp_path = tmp_path_factory.mktemp("whole")
    assert run(tmp_path / "a", result=tmp_path / "whole.pt") == 0
    return weights(tmp_path / "whole.pt")


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("resume", ["last.ckpt", "last"])
def test_killed_training_resumes_to_the_same_weights(tmp_path, whole, resume):
    folder, ended = tmp_path / "b", tmp_path / "ended.pt"
    # Six epochs of four steps: it is killed in the first step after the third.
    assert run(folder, kill_at=13, result=ended) == -signal.SIGKILL
    where = folder / resume if resume.endswith("ckpt") else resume
    assert run(folder, resume=where, result=ended) == 0
    expected, found = whole, weights(ended)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    names = sorted(p.name for p in folder.iterdir())
    # The two best, the last, and what was to be removed when the kill came.
    assert "last.ckpt" in names
    assert len(names) in {3, 4}
    for name in names:
        (saved,) = list_checkpoints(folder / name)
        assert verify(saved.url) == []
    assert Path(torch.load(ended)["best"]).name in names


@pytest.fixture
def io():
    from drivetrain_checkpoint.adapters.lightning import TwoStageCheckpointIO

    io = TwoStageCheckpointIO()
    yield io
    with warnings.catch_warnings():
        io.teardown()


def checkpoint(value):
    return {
        "state_dict": {"w": torch.full((1000,), float(value))},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(float(value))}}}],
        "loops": {"fit": (value, None, float("inf"))},
        "global_step": value,
    }


def test_checkpoint_comes_back_as_it_was(io, tmp_path):
    path = tmp_path / "run" / "epoch=1-step=7.ckpt"
    io.save_checkpoint(checkpoint(7), path)
    assert path.exists()
    found = io.load_checkpoint(path, map_location="cpu")
    assert torch.equal(found["state_dict"]["w"], torch.full((1000,), 7.0))
    assert found["optimizer_states"][0]["state"][0]["step"] == 7
    assert found["loops"] == {"fit": (7, None, float("inf"))}
    io.teardown()
    assert io.load_checkpoint(path)["global_step"] == 7
    assert [saved.step for saved in list_checkpoints(path)] == [7]


def wait_for_saves(io):
    # What is done already is no longer among them.
    assert all(save.wait(60) for save in list(io._open))


def test_old_checkpoint_goes_only_when_the_new_one_is_durable(io, tmp_path):
    old, new = tmp_path / "old.ckpt", tmp_path / "new.ckpt"
    io.save_checkpoint(checkpoint(1), old)
    wait_for_saves(io)
    new.write_text("in the way")
    with pytest.raises(FileExistsError, match="is a file"):
        io.save_checkpoint(checkpoint(2), new)
    new.unlink()
    io.save_checkpoint(checkpoint(2), new)
    io.remove_checkpoint(old)
    io.teardown()
    assert not old.exists()
    assert [saved.step for saved in list_checkpoints(new)] == [2]


def test_failed_save_keeps_the_old_checkpoint_and_is_told(io, tmp_path, monkeypatch):
    old, new = tmp_path / "old.ckpt", tmp_path / "new.ckpt"
    io.save_checkpoint(checkpoint(1), old)
    wait_for_saves(io)
    saver = next(iter(io._savers.values()))
    # The daemon is told to write where a file is in the way of its folder.
    save = saver.save

    def save_there(*arguments, under):
        (tmp_path / "taken").write_text("a file")
        return save(*arguments, under="taken")

    monkeypatch.setattr(saver, "save", save_there)
    io.save_checkpoint(checkpoint(2), new)
    io.remove_checkpoint(old)
    with pytest.raises(CheckpointError, match="step 2 was not saved"):
        io.teardown()
    assert io.load_checkpoint(old)["global_step"] == 1


def test_same_path_is_replaced_as_a_whole(io, tmp_path):
    path = tmp_path / "last.ckpt"
    for value in (1, 2, 3):
        io.save_checkpoint(checkpoint(value), path)
    assert io.load_checkpoint(path)["global_step"] == 3
    io.teardown()
    assert [saved.step for saved in list_checkpoints(path)] == [3]


@pytest.mark.slow
def test_objects_are_refused_by_name_unless_asked_for(tmp_path):
    from drivetrain_checkpoint.adapters.lightning import TwoStageCheckpointIO

    path = tmp_path / "x.ckpt"
    content = {**checkpoint(1), "hyper_parameters": {"place": Path("/data")}}
    plain, trusting = TwoStageCheckpointIO(), TwoStageCheckpointIO(objects="pickle")
    with pytest.raises(TypeError, match=r"hyper_parameters\.place is of type Posix"):
        plain.save_checkpoint(content, path)
    trusting.save_checkpoint(content, path)
    trusting.teardown()
    assert trusting.load_checkpoint(path)["hyper_parameters"]["place"] == Path("/data")
    for load in (plain.load_checkpoint, trusting.load_checkpoint):
        with pytest.raises(CheckpointError, match=r"place was saved as a pickle"):
            load(path, weights_only=True)
    with pytest.raises(CheckpointError, match=r"place was saved as a pickle"):
        plain.load_checkpoint(path)
    assert "hyper_parameters" in plain.load_checkpoint(path, weights_only=False)


def test_damage_and_absence_are_told(io, tmp_path):
    path = tmp_path / "x.ckpt"
    with pytest.raises(CheckpointError, match="no checkpoint"):
        io.load_checkpoint(path)
    io.save_checkpoint(checkpoint(1), path)
    io.teardown()
    (file,) = path.rglob("rank-00000.safetensors")
    with file.open("r+b") as handle:
        handle.seek(-5, os.SEEK_END)
        handle.write(b"x")
    with pytest.raises(CorruptCheckpointError, match="is damaged in block"):
        io.load_checkpoint(path)


class NeverCommitted:
    durable = False

    def wait(self):
        return True


@pytest.mark.parametrize("name", ["last.ckpt", "last-v1.ckpt", "hpc_ckpt_3.ckpt"])
def test_what_lightning_goes_on_from_by_name_is_not_there_before_it_is_whole(
    io, tmp_path, monkeypatch, name
):
    from drivetrain_checkpoint import Checkpointer

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "save", lambda *_, **__: NeverCommitted())
        io.save_checkpoint(checkpoint(1), tmp_path / name)
        assert list(tmp_path.iterdir()) == []
        io.save_checkpoint(checkpoint(1), tmp_path / "epoch=1.ckpt")
        assert [path.name for path in tmp_path.iterdir()] == ["epoch=1.ckpt"]


def load_its_own(folder):
    from drivetrain_checkpoint.adapters.lightning import TwoStageCheckpointIO

    io, rank = TwoStageCheckpointIO(), dist.get_rank()
    paths = [folder / "one.ckpt", folder / "two.ckpt"]
    if rank == 0:
        for step, path in enumerate(paths, 4):
            io.save_checkpoint(checkpoint(step), path)
    dist.barrier()
    own = io.load_checkpoint(paths[rank])
    alike = io.load_checkpoint(paths[0])
    dist.barrier()
    io.teardown()
    return own["global_step"], alike["global_step"]


@pytest.mark.slow
def test_ranks_may_load_different_checkpoints(tmp_path):
    assert run_ranks(load_its_own, 2, tmp_path) == [(4, 4), (5, 4)]


def test_file_of_lightning_itself_is_read(io, tmp_path):
    path = tmp_path / "old.ckpt"
    torch.save(checkpoint(4), path)
    assert io.load_checkpoint(path)["global_step"] == 4


@pytest.mark.faults
@pytest.mark.slow
def test_two_ranks_save_on_the_first_and_resume_on_both(tmp_path):
    folder, result = tmp_path / "run", tmp_path / "result.pt"
    assert run(folder, kill_at=7, devices=2, result=result) != 0
    assert list_checkpoints(folder / "last.ckpt")
    assert run(folder, resume=folder / "last.ckpt", devices=2, result=result) == 0
    (saved,) = list_checkpoints(folder / "last.ckpt")
    assert (saved.step, saved.world_size) == (12, 1)
