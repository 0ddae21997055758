"""Meshes of models whose blocks stand in one list with an embedding and a head."""

from collections import OrderedDict
from pathlib import Path

import mesh_programs as programs
import pytest
import torch
from torch import nn
from torch.nn import functional as f

from drivetrain_core import Code, PlanError, accelerate
from drivetrain_core._model.blocks import block_run, find_blocks, repeated_blocks
from drivetrain_parallel.pipeline import plan_pipeline
from drivetrain_parallel.tensor import plan_tensor_parallel
from drivetrain_parallel.tensor.repeated import find_block_lists, shortened
from drivetrain_testing import run_ranks

WIDTH, VOCAB = programs.WIDTH, programs.VOCAB
NAMES = ("embed", "one", "two", "three", "four", "norm", "head")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x):
        return x + self.down(f.gelu(self.up(self.norm(x))))


class Looped(nn.Module):
    """Goes through a ModuleList itself."""

    def __init__(self, row):
        super().__init__()
        self.row = nn.ModuleList(row)

    def forward(self, x):
        for module in self.row:
            x = module(x)
        return x


def build(kind="sequential", tied=False):
    """Returns an embedding, four blocks, a norm and a head, all in one list."""
    torch.manual_seed(0)
    attends, count = kind in ("attention", "three"), 3 if kind == "three" else 4
    block = (lambda: programs.Block(mixes=False)) if attends else Block
    head = nn.Linear(WIDTH, VOCAB, bias=not tied)
    row = [nn.Embedding(VOCAB, WIDTH), *(block() for _ in range(count))]
    nn.init.normal_(row[0].weight, std=0.1)
    if tied:
        head.weight = row[0].weight
    row += [nn.LayerNorm(WIDTH), head]
    if kind == "named":
        return nn.Sequential(OrderedDict(zip(NAMES, row, strict=True)))
    return Looped(row) if kind == "looped" else nn.Sequential(*row)


def train(strategy, kind="sequential", tied=False, **options):
    return programs.train_model(lambda: build(kind, tied), strategy, **options)


def several(cases):
    return [train(*case) for case in cases]


def loss_of(model, batch):
    return programs.loss(model(batch[0]), batch)


CASES = [
    ([("mesh", {"pipeline": 2}), "ddp"],),
    ([("mesh", {"pipeline": 4}), ("micro_batch", 4)], "looped"),
    ([("mesh", {"pipeline": 2, "tensor": 2})],),
    ([("mesh", {"pipeline": 2, "tensor": 2})], "named"),
    ([("mesh", {"tensor": 2}), "fsdp", "activation_checkpoint"], "looped"),
    ([("mesh", {"pipeline": 2}), "fsdp"], "sequential", True),
    (["fsdp"], "sequential", True),
    ([("mesh", {"context": 2, "pipeline": 2})], "attention"),
    ([("mesh", {"pipeline": 2}), ("schedule", "interleaved_1f1b"), "ddp"],),
    # More stages than equal blocks: all modules of the list are divided.
    ([("mesh", {"pipeline": 2}), ("schedule", "interleaved_1f1b"), "fsdp"], "three"),
]


@pytest.mark.slow
def test_every_mesh_trains_as_one_process():
    expected = [train([], *case[1:]) for case in CASES]
    for rank in run_ranks(several, 4, CASES, timeout_s=240):
        for (losses, norm), alone, case in zip(rank, expected, CASES, strict=True):
            assert losses == pytest.approx(alone[0], rel=2e-5), case
            assert norm == pytest.approx(alone[1], rel=1e-4), case


def follow_the_readme(code):
    torch.set_num_threads(1)
    scope = {"__name__": "readme"}
    exec(code, scope)  # noqa: S102
    return scope["train"]()


@pytest.mark.slow
def test_the_program_of_the_readme_is_laid_over_a_mesh():
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    code = text.partition("```python\n")[2].partition("```")[0]
    mesh = 'strategy=[("mesh", {"pipeline": 2, "tensor": 2})]'
    assert mesh in code
    code = code.replace("range(8)", "range(2)")
    whole = follow_the_readme(code.replace(mesh, "strategy=[]"))
    found = run_ranks(follow_the_readme, 4, code)
    for losses in found:
        assert losses == pytest.approx(whole, rel=2e-5)


@pytest.mark.faults
def test_three_axes_at_once():
    strategy = [("mesh", {"pipeline": 2, "shard": 2, "tensor": 2})]
    losses, norm = run_ranks(train, 8, strategy, timeout_s=240)[5]
    expected = train([])
    assert losses == pytest.approx(expected[0], rel=2e-5)
    assert norm == pytest.approx(expected[1], rel=1e-4)


def test_blocks_are_the_run_of_equal_modules():
    facts = find_blocks(build())
    assert (facts.container, facts.kind, facts.count, facts.before) == (
        "",
        "Block",
        4,
        1,
    )
    model = build("looped")
    assert repeated_blocks(model, find_blocks(model)) == list(model.row)[1:5]


@pytest.mark.parametrize(
    ("sizes", "places"),
    [
        ([(4, 4), (4, 4), (4, 8), (8, 8), (8, 8), (8, 8)], range(6)),
        ([None, (4, 4), (4, 4), (4, 8), (8, 8), (8, 8), (8, 8)], range(4, 7)),
        ([(4, 4), (4, 4), None, (8, 8), (8, 8)], range(3, 5)),
        ([(4, 4), None, (4, 4), None, (4, 4)], range(0)),
        ([None, (4, 8), (8, 4)], range(0)),
        ([(4, 4)], range(0)),
        ([], range(0)),
    ],
)
def test_a_run_is_of_one_class_and_one_size(sizes, places):
    row = [nn.ReLU() if size is None else nn.Linear(*size) for size in sizes]
    assert block_run(row) == places


def test_modules_without_parameters_are_no_blocks():
    row = [nn.Linear(4, 4), nn.ReLU(), nn.ReLU(), nn.ReLU()]
    assert not block_run(row)


def test_a_list_beside_a_run_of_its_parent_is_found_as_well():
    deep = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    model = nn.Sequential(nn.Embedding(9, 4), nn.Embedding(9, 4), deep)
    lists = find_block_lists(model)
    assert lists.blocks() == ["0", "1", "2.0", "2.1", "2.2"]
    assert (lists.block("2.1.weight"), lists.block("2.weight")) == ("2.1", "")
    assert find_blocks(model).container == ""


def test_a_shorter_model_keeps_what_stands_around_the_blocks():
    model = build("looped")
    short = shortened(model, find_block_lists(model))
    assert list(short.row._modules) == ["0", "1", "2", "5", "6"]
    assert short(programs.batches()[0][0]).shape[-1] == VOCAB


def test_a_pipeline_plan_says_where_the_blocks_stand():
    model, batch = build(), programs.batches()[0]
    plan = plan_pipeline(model, batch, loss_of, 2)
    assert (plan.num_blocks, plan.before, plan.after) == (4, 1, 2)
    assert plan.prologue == ("0",)
    assert plan.stages[1].zeroed == ("0",)
    assert plan.stages[0].dropped == ("5", "6")
    assert type(plan).from_dict(plan.to_dict()) == plan


def test_sequence_parallel_names_the_list_that_is_shared():
    with pytest.raises(PlanError, match="share row with other modules") as caught:
        plan_tensor_parallel(
            build("looped"), programs.batches()[0], loss_of, 2, sequence=True
        )
    assert "a list of their own" in caught.value.fix


def refuse_other_blocks():
    """Asks for more stages than there are equal blocks, and a context axis."""
    strategy = [
        ("mesh", {"pipeline": 2, "context": 2}),
        ("schedule", "zbv_zero_bubble"),
    ]
    try:
        train(strategy, "three")
    except PlanError as error:
        return error.code, str(error)
    return None


@pytest.mark.slow
def test_stages_of_other_modules_than_those_that_share_the_sequence_are_refused():
    code, message = run_ranks(refuse_other_blocks, 4)[0]
    assert code is Code.CONFLICT
    assert "and 3 blocks share the sequence" in message


def refused(strategy):
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    data = [(torch.randn(8, 8), torch.randn(8, 8))]
    try:
        accelerate(
            model,
            programs.sgd,
            data,
            lambda output, batch: f.mse_loss(output, batch[1]),
            strategy=strategy,
            progress=False,
        )
    except PlanError as error:
        return error.code, str(error)
    return None


@pytest.mark.slow
def test_a_model_without_repeated_blocks_is_told_what_a_mesh_needs():
    for axis in ("pipeline", "tensor"):
        code, message = run_ranks(refused, 2, [("mesh", {axis: 2})])[0]
        assert code is Code.NOT_APPLICABLE
        assert "side by side in a ModuleList or Sequential" in message
        assert "fsdp and ddp need no" in message
