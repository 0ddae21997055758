"""The command `drivetrain simulate`."""

from __future__ import annotations

import dataclasses
import json

import pytest

from drivetrain_core.commands import CommandParser, run_command
from drivetrain_parallel.cli import populate_parser
from drivetrain_parallel.simulate.clusters import load_cluster
from drivetrain_parallel.simulate.models import MODELS, load_model

SMALL = "layers=8,hidden=512,heads=8,vocab=1000,seq=512"


@pytest.fixture
def simulate(capsys):
    """Runs the command; returns its status, output and errors."""

    def run(*argv):
        parser = CommandParser(prog="drivetrain simulate")
        populate_parser(parser)
        try:
            arguments = parser.parse_args(list(argv))
            status = run_command("drivetrain", arguments.run, arguments)
        except SystemExit as left:
            status = left.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_best_meshes_are_shown_with_reasons(simulate):
    status, out, err = simulate(
        *("--model", "llama3-8b", "--gpus", "64", "--top", "3", "--micro-batch", "1")
    )
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("| mesh | run | step s | tokens/s/GPU | MFU |")
    assert len([line for line in lines if line.startswith("| ")]) == 4
    assert "x the time of the best" in lines[3]
    assert "meshes that can run" in lines[-1]
    assert "(simulation)" in lines[-1]


def test_named_mesh_is_the_only_one(simulate):
    status, out, _ = simulate(
        *("--model", SMALL, "--gpus", "16", "--mesh", "pipeline=4,tensor=2", "--json"),
        *("--global-batch", "32", "--schedule", "1f1b", "--micro-batch", "2"),
        *("--checkpointing", "full", "--zero", "3"),
    )
    assert status == 0
    (found,) = json.loads(out)["candidates"]
    assert found["mesh"] == {"pipeline": 4, "shard": 2, "tensor": 2}
    assert (found["schedule"], found["micro_batch"]) == ("1f1b", 2)
    assert (found["checkpointing"], found["zero"]) == ("full", 3)
    assert found["step_s"] == pytest.approx(sum(found["seconds"].values()))


def test_the_stages_that_are_named_are_kept(simulate):
    status, out, _ = simulate(
        *("--model", SMALL, "--mesh", "pipeline=2", "--stages-per-rank", "4", "--json")
    )
    assert status == 0
    (found,) = json.loads(out)["candidates"]
    assert found["stages_per_rank"] == 4


def test_mesh_alone_says_how_many_gpus(simulate):
    status, out, _ = simulate("--model", SMALL, "--mesh", "shard=4,tensor=2", "--json")
    assert status == 0
    assert json.loads(out)["candidates"][0]["mesh"] == {"shard": 4, "tensor": 2}


def test_options_of_a_step_can_be_set(simulate):
    tokens = []
    for share in ("0.0", "1.0"):
        _, out, _ = simulate(
            *("--model", SMALL, "--mesh", "tensor=8", "--json"),
            *("--set", f"overlap_tensor={share}", "--set", "fused_kernels=true"),
        )
        tokens.append(json.loads(out)["candidates"][0]["tokens_per_s_per_device"])
    assert tokens[1] > tokens[0]


def test_cluster_of_a_file_is_read(simulate, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        load_cluster("h100").to_yaml().replace("3.35TB/s", "6.7TB/s"), encoding="utf-8"
    )
    both = []
    for cluster in ("h100", str(file)):
        _, out, _ = simulate(
            "--cluster", cluster, "--model", SMALL, "--mesh", "shard=8", "--json"
        )
        both.append(json.loads(out)["candidates"][0]["step_s"])
    assert both[1] < both[0]


def test_refused_meshes_are_shown_on_request(simulate):
    large = "layers=8,hidden=16384,heads=8,vocab=1000,seq=512"
    argv = ("--model", large, "--gpus", "8", "--top", "1", "--schedule", "1f1b")
    assert "needs at least" not in simulate(*argv)[1]
    assert "- replicate=8: needs at least" in simulate(*argv, "--refused")[1]


def test_published_rows_are_predicted(simulate):
    status, out, _ = simulate("--published")
    assert status == 0
    assert "| torchtitan |" in out
    plain = json.loads(simulate("--published", "--json")[1])
    assert len(plain) == 250
    assert {row["calibrates"] for row in plain} == {True, False}


@pytest.mark.slow
def test_ablation_is_predicted(simulate):
    status, out, _ = simulate("--ablation", "--json", "--top", "2")
    assert status == 0
    plain = json.loads(out)
    assert plain["steps"][0]["measured"] == 47.7
    assert plain["steps"][1]["name"] == "parallel block"
    assert len(plain["at_scale"]["candidates"]) == 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--gpus", "8"), "--model is missing"),
        (("--model", SMALL), "neither --gpus nor --mesh is given"),
        (("--model", "lama3-8b", "--gpus", "8"), "nearest: llama3-8b"),
        (("--model", "layers=2", "--gpus", "8"), "lacks hidden, heads"),
        (("--model", f"{SMALL},ffm=3", "--gpus", "8"), "no 'ffm'; nearest: ffn"),
        (("--model", f"{SMALL},ffn=x", "--gpus", "8"), "ffn must be an integer"),
        (("--model", SMALL, "--gpus", "0"), "--gpus: must be from 1 to 131,072, got 0"),
        (("--model", SMALL, "--gpus", "8", "--seq", "0"), "--seq: must be at least 1"),
        (("--model", SMALL, "--gpus", "8", "--cluster", "h10"), "no cluster 'h10'"),
        (("--model", SMALL, "--mesh", "tensr=2"), "--mesh has 'tensr'"),
        (("--model", SMALL, "--mesh", "tensor=two"), "tensor must be an integer"),
        (("--model", SMALL, "--mesh", "tensor"), "tensor must be an integer"),
        (("--model", SMALL, "--gpus", "8", "--mesh", "tensor=3"), "and there are 8"),
        (("--model", SMALL, "--gpus", "8", "--schedule", "2f"), "--schedule has '2f'"),
        (
            ("--model", SMALL, "--gpus", "8", "--zero", "7"),
            "--zero: must be from 0 to 3",
        ),
        (("--model", SMALL, "--gpus", "8", "--set", "overlap=1"), "--set has"),
        (
            ("--model", SMALL, "--gpus", "8", "--set", "fused_kernels=perhaps"),
            "fused_kernels must be true or false",
        ),
        (
            ("--model", SMALL, "--gpus", "8", "--set", "overlap_data=much"),
            "overlap_data must be a number",
        ),
        (("--model", SMALL, "--mesh", "tensor=2,tensor=4"), "names tensor twice"),
        (("--published", "--gpus", "8"), "leave --gpus out"),
        (("--published", "--zero", "2"), "leave --zero out"),
        (("--published", "--ablation"), "ask for one of them"),
        (
            ("--model", SMALL, "--gpus", "8", "--global-batch", "0"),
            "--global-batch: must be at least 1, got 0",
        ),
        (
            ("--model", SMALL, "--gpus", "8", "--micro-batch", "0"),
            "--micro-batch: must be at least 1, got 0",
        ),
        (("--model", SMALL, "--gpus", "8", "--top", "0"), "--top: must be at least 1"),
        (("--model", SMALL, "--gpus", "8", "--top", "-3"), "--top: must be at least 1"),
        (
            ("--model", SMALL, "--mesh", "shard=8", "--schedule", "1f1b"),
            "--schedule 1f1b is about the pipeline axis, and the mesh shard=8 has none",
        ),
        (
            ("--model", SMALL, "--mesh", "shard=8", "--stages-per-rank", "2"),
            "leave --stages-per-rank out, or name pipeline in --mesh",
        ),
        (
            ("--model", SMALL, "--mesh", "tensor=8", "--zero", "3"),
            "--zero 3 is about the shard axis",
        ),
        (
            ("--model", SMALL, "--gpus", "8", "--zero", "2", "--set", "zero=3"),
            "zero has an option of its own",
        ),
        (
            ("--model", SMALL, "--gpus", "8", "--set", "micro_batch=3"),
            "Fix: use --micro-batch 3",
        ),
        (
            (
                *("--model", SMALL, "--gpus", "8"),
                *("--set", "overlap_data=0.5", "--set", "overlap_data=0.6"),
            ),
            "--set names overlap_data twice",
        ),
        (
            (
                *("--model", SMALL, "--gpus", "8"),
                *("--schedule", "1f1b", "--stages-per-rank", "2"),
            ),
            "1f1b has 1 stages a rank, and --stages-per-rank is 2",
        ),
    ],
)
def test_wrong_use_is_told_in_the_last_line(simulate, argv, words):
    status, out, err = simulate(*argv)
    assert (status, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("drivetrain simulate: error: ")
    assert words in last


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--model", "llama3-405b", "--gpus", "8"), "no mesh can run"),
        (("--model", "llama3-405b", "--gpus", "8"), "Fix: use more devices"),
        (("--model", "gpt2-xl", "--mesh", "tensor=2"), "Fix: use a divisor of 25"),
        (
            (
                *("--model", SMALL, "--mesh", "pipeline=2"),
                *("--schedule", "interleaved_1f1b", "--stages-per-rank", "100"),
            ),
            "2 ranks of 100 stages need 200 blocks",
        ),
        (
            ("--model", SMALL, "--gpus", "8", "--micro-batch", "3"),
            "a multiple of 3 for some of the meshes, of 24 for all, or another",
        ),
        (
            ("--model", SMALL, "--mesh", "shard=8", "--micro-batch", "3"),
            "Fix: use a multiple of 24, or another mesh or micro-batch",
        ),
    ],
)
def test_job_that_no_mesh_fits_is_one_clear_line(simulate, argv, words):
    status, out, err = simulate(*argv)
    assert (status, out) == (1, "")
    assert err.startswith("drivetrain: ")
    assert len(err.splitlines()) == 1
    assert words in err


def test_groups_of_nodes_are_refused(simulate, tmp_path):
    spec = load_cluster("h100")
    more = dataclasses.replace(spec.nodes[0], name="more")
    file = tmp_path / "two.yaml"
    dataclasses.replace(spec, nodes=(*spec.nodes, more)).dump(file)
    status, _, err = simulate("--cluster", str(file), "--model", SMALL, "--gpus", "8")
    assert status == 2
    assert "several groups of nodes (gpu, more)" in err


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt2-xl", 1.56),
        ("gpt3-175b", 174.6),
        ("llama2-13b", 13.02),
        ("llama3-8b", 8.03),
        ("llama3-70b", 70.55),
        ("llama3-405b", 405.85),
        ("mixtral-8x7b", 46.70),
    ],
)
def test_named_models_have_the_size_of_their_name(name, billions):
    assert load_model(name).num_parameters / 1e9 == pytest.approx(billions, rel=2e-3)


def test_every_named_model_is_checked():
    assert len(MODELS) == 7
