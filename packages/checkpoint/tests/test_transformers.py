"""The Hugging Face Trainer saves in two stages, is killed, and resumes."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from drivetrain_checkpoint import Checkpointer, list_checkpoints
from drivetrain_core import CheckpointError

pytestmark = [pytest.mark.extra, pytest.mark.filterwarnings("ignore")]

RUN = textwrap.dedent(
    """
    import os, signal, sys, warnings
    warnings.simplefilter("ignore")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments
    from drivetrain_checkpoint import Checkpointer
    from drivetrain_checkpoint.adapters.transformers import TwoStageTrainer

    class Kill(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    folder, kill_at, resume, result = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, attention_dropout=0.1,
    )
    tokens = torch.randint(0, 32, (24, 8))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    args = TrainingArguments(
        f"{folder}-out", max_steps=14, per_device_train_batch_size=4, save_steps=4,
        learning_rate=0.01, report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=2,
    )
    trainer = TwoStageTrainer(
        LlamaForCausalLM(config), args, train_dataset=data, callbacks=[Kill()],
        checkpointer=Checkpointer(folder, job="trainer"),
    )
    trainer.train(resume_from_checkpoint=resume == "resume")
    torch.save(
        {"model": trainer.model.state_dict(), "logs": trainer.state.log_history}, result
    )
    """
)


def run(tmp_path, name, *, kill_at=-1, resume=False):
    script = tmp_path / "train.py"
    script.write_text(RUN)
    arguments = [tmp_path / name, kill_at, "resume" if resume else "", f"{name}.pt"]
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        check=False,
        timeout=200,
    ).returncode


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a training that was not killed ends with."""
    tmp_path = tmp_path_factory.mktemp("whole")
    assert run(tmp_path, "whole") == 0
    return torch.load(tmp_path / "whole.pt")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill_at",
    [
        pytest.param(5, marks=pytest.mark.faults),
        pytest.param(11, marks=pytest.mark.faults),
    ],
)
def test_killed_training_resumes_to_the_same_weights(tmp_path, whole, kill_at):
    assert run(tmp_path, "killed", kill_at=kill_at) == -signal.SIGKILL
    # What looks like a newer checkpoint, and was never committed, is not taken.
    torn = tmp_path / "killed" / f"step-{13:010d}-{'0' * 16}"
    torn.mkdir(parents=True)
    (torn / "rank-00000.safetensors").write_bytes(b"torn")
    assert run(tmp_path, "killed", resume=True) == 0
    expected = whole
    found = torch.load(tmp_path / "killed.pt")
    for name, tensor in expected["model"].items():
        assert torch.equal(found["model"][name], tensor), name
    losses = [
        [log["loss"] for log in x["logs"] if "loss" in log] for x in (expected, found)
    ]
    assert json.dumps(losses[0]) == json.dumps(losses[1])
    assert list_checkpoints(tmp_path / "killed")[-1].step == 14


def make(tmp_path, **arguments):
    from transformers import TrainingArguments

    from drivetrain_checkpoint.adapters.transformers import TwoStageTrainer

    args = TrainingArguments(
        str(tmp_path / "out"), report_to=[], use_cpu=True, **arguments
    )
    checkpointer = Checkpointer(tmp_path / "run", job="trainer")
    return TwoStageTrainer(torch.nn.Linear(2, 1), args, checkpointer=checkpointer)


def test_what_is_not_offered_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"save_total_limit is not offered .*keep="):
        make(tmp_path, save_total_limit=2)


def test_resume_without_a_checkpoint_is_told(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint"):
        make(tmp_path).train(resume_from_checkpoint=True)
