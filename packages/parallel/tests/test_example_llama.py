"""The example that trains a Llama of transformers over a mesh."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import llama
import pytest
import torch

from drivetrain_core import MissingLibraryError
from drivetrain_testing import RankError, run_ranks

SMALL = llama.Job(
    steps=3,
    batch_size=4,
    length=16,
    max_bytes=100_000,
    check=True,
    sizes={"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
)

OUTCOME = llama.Outcome(
    plan="mesh(pipeline=2)",
    parts=(("mesh", "pipeline=2"), ("stage 0", "model.layers, 0 to 1")),
    losses=(5.5, 4.25, 3.75),
    tokens_per_s=1234.5,
    parameters=1_000_000,
    largest_share=0.25,
    error=3e-7,
)


@pytest.fixture
def on_rank(monkeypatch):
    """Stands for one rank of a job that has come out in some way."""

    def come_out(outcome, rank=0):
        jobs = []

        def train(job):
            jobs.append(job)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setattr(llama, "train", train)
        monkeypatch.setattr(llama, "destroy_process_group", lambda: None)
        return jobs

    return come_out


def test_llama_prints_what_was_split_and_what_came_out(on_rank, capsys):
    (jobs := on_rank(OUTCOME)).clear()
    assert llama.main(["--check"]) == 0
    out = capsys.readouterr().out
    assert "5.5000 to 3.7500 in 3 steps" in out
    assert "1,000,000, at most 25% on a rank" in out
    assert "model.layers, 0 to 1" in out
    assert "losses are those of one process to 3e-07: exact" in out
    assert jobs == [llama.Job(check=True)]
    assert jobs[0].mesh == {"pipeline": 2, "shard": 2, "tensor": 2}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"error": 2e-5}, "NOT within 1e-05"),
        ({"losses": (5.5, 5.6)}, "5.5000 to 5.6000"),
        ({"losses": (5.5, float("nan"))}, "5.5000 to nan"),
        ({"error": float("nan")}, "NOT within 1e-05"),
    ],
)
def test_llama_that_does_not_learn_or_is_not_exact_fails(
    on_rank, capsys, changes, said
):
    on_rank(dataclasses.replace(OUTCOME, **changes))
    assert llama.main([]) == 1
    assert said in capsys.readouterr().out


def test_llama_speaks_on_the_first_rank_alone(on_rank, capsys):
    on_rank(OUTCOME, rank=1)
    assert llama.main([]) == 0
    on_rank(MissingLibraryError("no transformers here"), rank=1)
    assert llama.main([]) == 1
    assert capsys.readouterr() == ("", "")


def test_llama_says_in_one_line_why_it_cannot_train(on_rank, capsys):
    on_rank(MissingLibraryError("no transformers here"))
    assert llama.main([]) == 1
    assert capsys.readouterr().err == "no transformers here\n"


def test_llama_searches_where_it_is_asked_to(on_rank):
    jobs = on_rank(OUTCOME)
    llama.main(["--strategy", "auto", "--seconds", "60", "--trials", "3"])
    assert (jobs[0].mesh, jobs[0].seconds, jobs[0].trials) == (None, 60.0, 3)


@pytest.mark.parametrize(
    ("arguments", "because"),
    [
        (["--mesh", "pipeline"], "expected axes and numbers"),
        (["--mesh", "tensor=two"], "expected axes and numbers"),
        (["--mesh", ""], "expected axes and numbers"),
        (["--steps", "1"], "expected two steps or more, got '1'"),
        (["--strategy", "auto", "--mesh", "tensor=2"], "not allowed with"),
    ],
)
def test_llama_refuses_arguments_before_it_starts(on_rank, capsys, arguments, because):
    jobs = on_rank(OUTCOME)
    with pytest.raises(SystemExit):
        llama.main(arguments)
    assert because in capsys.readouterr().err
    assert jobs == []


def test_llama_starts_its_ranks_where_nobody_has(monkeypatch):
    commands = []
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(subprocess, "call", lambda c, **_: commands.append(c) or 3)
    assert llama.main(["--ranks", "4", "--mesh", "tensor=4"]) == 3
    (command,) = commands
    assert command[0] == sys.executable
    assert "--nproc-per-node=4" in command
    assert command[-4:] == ["--ranks", "4", "--mesh", "tensor=4"]


def test_llama_without_transformers_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        MissingLibraryError, match=r"pip install 'drivetrain-parallel\[examples\]"
    ):
        llama.build()


@pytest.mark.extra
def test_llama_alone_learns():
    pytest.importorskip("transformers")
    job = dataclasses.replace(SMALL, steps=30)
    losses = llama.train_alone(job, torch.device("cpu"))
    assert losses[0] == pytest.approx(5.55, abs=0.2)
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.extra
@pytest.mark.faults
def test_llama_over_two_ranks_is_that_of_one_process():
    pytest.importorskip("transformers")
    job = dataclasses.replace(SMALL, mesh={"tensor": 2})
    one, other = run_ranks(llama.train, 2, job, timeout_s=120)
    assert one.losses == other.losses
    assert one.error <= llama.BOUND
    assert 0.5 <= one.largest_share < 0.6
    lines = [text for name, text in one.parts if name == "tensor"]
    assert any("self_attn: q_proj" in t and t.endswith("(declared)") for t in lines)


@pytest.mark.extra
@pytest.mark.faults
def test_llama_on_a_mesh_that_does_not_fit_is_refused():
    pytest.importorskip("transformers")
    job = dataclasses.replace(SMALL, mesh={"tensor": 4})
    with pytest.raises(RankError, match="there are 2"):
        run_ranks(llama.train, 2, job, timeout_s=120)


@pytest.mark.extra
@pytest.mark.faults
def test_llama_over_eight_ranks_is_that_of_one_process():
    pytest.importorskip("transformers")
    job = dataclasses.replace(SMALL, mesh=dict(llama.MESH), steps=6)
    outcomes = run_ranks(llama.train, 8, job, timeout_s=300)
    assert len({outcome.losses for outcome in outcomes}) == 1
    assert outcomes[0].error <= llama.BOUND
    assert outcomes[0].losses[-1] < outcomes[0].losses[0]
    assert outcomes[0].largest_share < 0.2
    assert dict(outcomes[0].parts)["mesh"] == "pipeline=2 shard=2 tensor=2"


@pytest.mark.extra
@pytest.mark.faults
@pytest.mark.parametrize(
    "arguments",
    [
        ["--check", "--ranks", "8", "--steps", "5"],
        ["--strategy", "auto", "--ranks", "2", "--trials", "2", "--seconds", "120"],
    ],
    ids=["mesh", "auto"],
)
def test_llama_is_a_program(arguments, tmp_path):
    pytest.importorskip("transformers")
    command = [sys.executable, llama.__file__, *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=400, cwd=tmp_path, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "tokens/s" in ended.stdout
    assert ("check" in ended.stdout) == ("--check" in arguments)
