"""Plans that models declare of themselves: translated, proven, or found wrong."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import pytest
import torch
from tensor_models import WIDTH, Normed, Plain, loss_of, make, make_batch
from torch import nn
from torch.nn import functional as f

from drivetrain_parallel.tensor import (
    ModuleStyle,
    Style,
    TensorPlan,
    explain_tensor_plan,
    plan_tensor_parallel,
    verify_tensor_plan,
)
from drivetrain_parallel.tensor.areas import areas_by_kind
from drivetrain_parallel.tensor.declared import (
    Declared,
    declared_of,
    declared_split,
    keeps_values_split,
    read_declared,
)
from drivetrain_parallel.tensor.flow import trace_flow
from drivetrain_parallel.tensor.repeated import find_block_lists
from drivetrain_parallel.tensor.trial import Trial

ATTENTION = {
    "blocks.*.attention.q": "colwise",
    "blocks.*.attention.k": "colwise",
    "blocks.*.attention.v": "colwise",
    "blocks.*.attention.out": "rowwise",
}


class Gated(nn.Module):
    """Has gate and input in one matrix, and nothing that data flow tells them by."""

    def __init__(self):
        super().__init__()
        self.gate_up = nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, **kwargs):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.out(f.silu(gate) * up)


GATED = {
    "blocks.*.attention.gate_up": "packed_colwise",
    "blocks.*.attention.out": "rowwise",
}


def declaring(plan, attention=Plain, **options):
    """Returns a model of attention alone, with a plan of its own."""
    model = make(attention, ffn=0, **options)
    if plan is not None:
        model._tp_plan = plan
    return model


def planned(model, degree=2, **options):
    return plan_tensor_parallel(
        model, make_batch(), loss_of, degree, **{"vocab": False, **options}
    )


def facts(model):
    flow = trace_flow(model, make_batch(), loss_of)
    return flow.matrices, find_block_lists(model)


def translated(model):
    return declared_of(model, *facts(model))


@pytest.fixture
def trials(monkeypatch):
    """Counts the plans that are compared with one process."""
    tried = []
    original = Trial.__call__

    def counted(self, plan):
        tried.append(plan)
        return original(self, plan)

    monkeypatch.setattr(Trial, "__call__", counted)
    return tried


@pytest.mark.slow
def test_declared_plan_takes_the_place_of_what_would_be_tried(trials):
    plan = planned(declaring(GATED, Gated))
    with_declared = len(trials)
    trials.clear()
    derived = planned(declaring(None, Gated))
    # The first way that is derived is wrong, and the declared one is right.
    assert with_declared == len(trials) - 1
    assert set(plan.declared) == set(GATED)
    assert derived.declared == ()
    assert plan.modules == derived.modules
    assert not any(one.is_declared for one in plan.dropped)
    assert TensorPlan.from_dict(plan.to_dict()) == plan
    assert explain_tensor_plan(plan) == [
        "blocks.*.attention: gate_up colwise in 2 parts; out rowwise (declared)"
    ]
    assert explain_tensor_plan(derived) == [
        "blocks.*.attention: gate_up colwise in 2 parts; out rowwise (derived)"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "said", "because"),
    [
        (Plain, ATTENTION | {"blocks.*.attention.out": "colwise"}, "cannot be multi"),
        (Normed, ATTENTION, r"gradient of .*q_norm.* is off by \d"),
    ],
)
def test_declared_plan_that_is_wrong_is_named_and_not_applied(
    attention, said, because, caplog, trials
):
    model = declaring(said, attention)
    with caplog.at_level(logging.WARNING, "drivetrain_core"):
        plan = planned(model)
    assert plan.declared == ()
    assert verify_tensor_plan(model, make_batch(), loss_of, plan).is_exact
    (wrong,) = [one for one in plan.dropped if one.is_declared]
    assert set(wrong.names) == set(ATTENTION)
    assert re.search(because, wrong.because)
    (record,) = caplog.records
    assert "wrong on 2 ranks, and not used" in record.getMessage()
    assert re.search(because, record.getMessage())
    lines = explain_tensor_plan(plan)
    assert lines[0].endswith("(derived)")
    assert re.search(because, lines[-1])
    # What was found wrong is not tried a second time.
    assert all(one != other for i, one in enumerate(trials) for other in trials[:i])


@pytest.mark.faults
def test_declared_plan_of_one_matrix_of_four_is_wrong():
    plan = planned(declaring({"blocks.*.attention.q": "colwise"}))
    assert plan.declared == ()
    (wrong,) = [one for one in plan.dropped if one.is_declared]
    assert "wrong" in wrong.because


@pytest.mark.faults
def test_declared_plan_that_joins_outputs_gives_way_to_what_stays_split():
    said = dict.fromkeys(ATTENTION, "colwise_gather_output")
    plan = planned(declaring(said))
    assert plan.declared == ()
    assert plan.modules["blocks.0.attention.out"].style is Style.ROWWISE
    (weaker,) = [one for one in plan.dropped if one.is_declared]
    assert "are exact, and keep less split" in weaker.because


@pytest.mark.faults
def test_declared_norm_between_matrices_gets_the_sum_of_its_gradients():
    said = ATTENTION | {"blocks.*.attention.q_norm": "replicated_with_grad_allreduce"}
    plan = planned(declaring(said, Normed))
    assert set(plan.declared) == set(said)
    assert plan.modules["blocks.1.attention.q_norm"].style is Style.PARTIAL


@pytest.mark.faults
@pytest.mark.parametrize("said", ["colwise_gather_output", "colwise"])
def test_declared_head_is_proven_as_well(said):
    plan = planned(declaring({"head": said}), vocab=True)
    assert plan.modules["head"].style is Style.COLWISE_GATHERED
    is_right = said == "colwise_gather_output"
    assert plan.declared == (("head",) if is_right else ())
    assert [one.names for one in plan.dropped if one.is_declared] == (
        [] if is_right else [("head",)]
    )


@pytest.mark.faults
def test_declared_head_that_stays_whole_is_said_to():
    plan = planned(declaring({"head": "colwise_gather_output"}))
    (unused,) = [one for one in plan.dropped if one.is_declared]
    assert unused.names == ("head",)
    assert unused.because == "they are whole on every rank"


@pytest.mark.parametrize(
    ("name", "said", "style"),
    [
        ("blocks.*.up", "colwise", ModuleStyle(style=Style.COLWISE)),
        ("blocks.*.up", "colwise_rep", ModuleStyle(style=Style.COLWISE_GATHERED)),
        ("blocks.*.down", "rowwise", ModuleStyle(style=Style.ROWWISE)),
        (
            "blocks.*.up",
            "packed_colwise",
            ModuleStyle(style=Style.COLWISE, parts=(24, 24)),
        ),
        (
            "blocks.*.down",
            "packed_rowwise",
            ModuleStyle(style=Style.ROWWISE, parts=(24, 24)),
        ),
        ("embedding", "embedding_rowwise", ModuleStyle(style=Style.VOCAB)),
        ("embedding", "rowwise", ModuleStyle(style=Style.VOCAB)),
        ("embedding", "embedding_colwise", ModuleStyle(style=Style.COLWISE_GATHERED)),
        (
            "blocks.*.norm1",
            "replicated_with_grad_allreduce",
            ModuleStyle(style=Style.PARTIAL, is_entered=True),
        ),
        (
            "blocks.*.attention.k",
            "replicated_with_grad_allreduce",
            ModuleStyle(style=Style.PARTIAL),
        ),
        ("blocks.*.norm1", "replicate", None),
    ],
)
def test_declared_styles_have_ours(name, said, style):
    model = make()
    model._tp_plan = {name: said}
    found = translated(model)
    names = [name] if "*" not in name else [name.replace("*", str(i)) for i in (0, 1)]
    assert found.modules == ({} if style is None else dict.fromkeys(names, style))
    assert found.refused == frozenset()
    assert found.dropped == ()


@pytest.mark.parametrize(
    ("name", "said", "tried", "because"),
    [
        ("blocks.*.up", "fancy", "fancy", "no such style; known are colwise, "),
        ("blocks.*.up", ["colwise"], "a list", "expected the name of a style"),
        ("blocks.*.up", None, "a NoneType", "expected the name of a style"),
        ("blocks.*.up", "rowwise_split_input", "rowwise_split_input", "its input is"),
        ("blocks.*.up", "moe_tp_experts", "moe_tp_experts", "layers of a mixture"),
        ("blocks.*.up.weight", "colwise", "colwise", "names a parameter"),
        ("blocks.*.nothing", "colwise", "colwise", "matches no module of the model"),
        ("blocks.7.up", "colwise", "colwise", "matches no module of the model"),
        (3, "colwise", "colwise", "matches no module of the model"),
        ("blocks.*.norm1", "colwise", "colwise", "it names a LayerNorm"),
        ("blocks.*.up", "embedding_rowwise", "embedding_rowwise", "names a Linear"),
    ],
)
def test_declared_styles_that_say_nothing_are_named(name, said, tried, because):
    model = make()
    model._tp_plan = {name: said, "blocks.*.down": "rowwise"}
    found = translated(model)
    assert set(found.modules) == {"blocks.0.down", "blocks.1.down"}
    (one,) = found.dropped
    assert one.names == (str(name),)
    assert one.is_declared
    assert tried in one.tried
    assert because in one.because


def test_declared_packed_style_needs_two_equal_parts():
    model = make(ffn=7)
    model._tp_plan = {"blocks.*.up": "packed_colwise"}
    (one,) = translated(model).dropped
    assert one.because == "7 features are no two equal parts"


@pytest.mark.parametrize("plan", [[("q", "colwise")], "colwise", 7, dict])
def test_declared_plan_that_is_no_dict_is_named(plan):
    model = make()
    model.tp_plan = plan
    found, (one,) = read_declared(model)
    assert found == {}
    assert one.names == ("tp_plan",)
    assert "expected a dict of styles by name, got a" in one.because


class Raising(nn.Linear):
    """Has a plan that cannot be read."""

    @property
    def tp_plan(self):
        message = "ask later"
        raise RuntimeError(message)


class Delegating(nn.Module):
    """Answers for what it wraps, as adapters do."""

    def __init__(self, wrapped):
        super().__init__()
        self.wrapped = wrapped

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.wrapped, name)


def test_declared_plan_that_cannot_be_read_is_named():
    found, (one,) = read_declared(nn.Sequential(Raising(2, 2)))
    assert found == {}
    assert one.names == ("0.tp_plan",)
    assert one.because == "reading it raised RuntimeError: ask later"


def test_declared_plan_belongs_to_the_module_that_has_it():
    model = make()
    model._tp_plan = {"blocks.*.up": "colwise"}
    wrapper = Delegating(model)
    assert wrapper._tp_plan == model._tp_plan
    assert read_declared(wrapper) == ({"wrapped.blocks.*.up": "colwise"}, ())


@pytest.mark.parametrize("plan", [None, {}])
def test_declared_plan_that_is_empty_says_nothing(plan):
    model = make()
    model._tp_plan = plan
    assert read_declared(model) == ({}, ())
    assert translated(model) == Declared()


def test_declared_plan_of_a_model_inside_gets_its_name():
    inner = make()
    inner._tp_plan = {"blocks.*.up": "colwise"}
    inner.blocks[0]._tp_plan = {"up": "rowwise"}
    outer = nn.ModuleDict({"model": inner, "other": make()})
    # What is declared inside of a model that declares is a part of that already.
    assert read_declared(outer) == ({"model.blocks.*.up": "colwise"}, ())


def test_declared_plan_may_name_one_block_or_numbers_in_it():
    model = make()
    model.blocks[0].mlp = nn.Sequential(nn.Linear(4, 4))
    model._tp_plan = {"blocks.1.up": "rowwise", "blocks.*.up": "colwise"}
    styles = {name: one.style for name, one in translated(model).modules.items()}
    assert styles == {"blocks.0.up": Style.COLWISE, "blocks.1.up": Style.ROWWISE}


def splits(model, degree=2):
    """Returns what is declared for each kind of region, and why it is not tried."""
    flow = trace_flow(model, make_batch(), loss_of)
    lists = find_block_lists(model)
    declared = declared_of(model, flow.matrices, lists)
    return [
        (areas, *declared_split(areas, degree, declared, lists))
        for _, areas in areas_by_kind(model, flow, lists)
    ]


def test_declared_split_covers_all_blocks():
    ((areas, plan, because),) = splits(declaring(ATTENTION))
    assert because == ""
    assert plan is not None
    assert len(plan.modules) == 2 * len(ATTENTION)
    assert keeps_values_split(areas, plan)


def test_declared_split_is_none_where_nothing_is_declared():
    ((_, plan, because),) = splits(declaring({"head": "colwise_gather_output"}))
    assert (plan, because) == (None, "")


@pytest.mark.parametrize(
    ("said", "degree", "because"),
    [
        (ATTENTION, 3, f"{WIDTH} features are no multiple of 3"),
        (
            ATTENTION | {"blocks.*.attention.out": "rowwise_split_input"},
            2,
            "",
        ),
        (
            ATTENTION | {"blocks.1.attention.q": "rowwise"},
            2,
            "blocks that are alike declare different blocks.*.attention.q",
        ),
    ],
)
def test_declared_split_may_not_be_tried(said, degree, because):
    ((_, plan, found),) = splits(declaring(said), degree)
    assert plan is None
    assert found == because


def test_declared_split_of_a_part_does_not_keep_values_split():
    said = ATTENTION | {"blocks.*.attention.k": "replicate"}
    ((areas, plan, _),) = splits(declaring(said))
    assert plan is not None
    assert not keeps_values_split(areas, plan)


# --------------------------------------------------------------------------------
# Models of transformers, with the plans that it declares.


def families():
    """Returns the benchmark's table of families."""
    pytest.importorskip("transformers")
    sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
    try:
        import model_families
    finally:
        sys.path.pop()
    return model_families


def family_planned(name, change=None, degree=2):
    table = families()
    family = table.FAMILIES[name]
    blocks = "n_layer" if name == "gpt2" else "num_hidden_layers"
    torch.manual_seed(0)
    model = family.build(**{blocks: 2})
    if change is not None:
        model._tp_plan = change(dict(model._tp_plan))

    def family_loss(of, batch):
        return table.loss_of(family, of, batch)

    batch = family.batch(3)
    plan = plan_tensor_parallel(model, batch, family_loss, degree)
    assert verify_tensor_plan(model, batch, family_loss, plan).is_exact
    return plan


LLAMA = {
    f"model.layers.*.{part}"
    for part in (
        *(f"self_attn.{name}_proj" for name in "qkvo"),
        *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
    )
}


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.parametrize(
    ("name", "declared"),
    [
        pytest.param("llama", LLAMA, marks=pytest.mark.faults),
        pytest.param("mistral", LLAMA, marks=pytest.mark.faults),
        ("qwen3", LLAMA | {f"model.layers.*.self_attn.{n}_norm" for n in "qk"}),
    ],
)
def test_declared_plans_of_transformers_are_used(name, declared):
    plan = family_planned(name)
    assert set(plan.declared) == declared | {"model.embed_tokens", "lm_head"}
    assert not any(one.is_declared for one in plan.dropped)
    assert plan.is_verified


@pytest.mark.slow
@pytest.mark.extra
def test_declared_plan_of_phi3_is_not_ours_and_named():
    plan = family_planned("phi3")
    assert set(plan.declared) == {"model.embed_tokens", "lm_head"}
    assert min(plan.coverage.values()) > 0.9
    reasons = {one.names: one.because for one in plan.dropped if one.is_declared}
    whole = "its input is whole on every rank, and here it arrives split"
    assert reasons["model.layers.*.self_attn.o_proj",] == whole
    assert reasons["model.layers.*.mlp.down_proj",] == whole


@pytest.mark.extra
@pytest.mark.faults
def test_model_of_transformers_without_a_plan_is_derived():
    plan = family_planned("gpt2")
    assert plan.declared == ()
    assert not any(one.is_declared for one in plan.dropped)


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param(
            "llama",
            lambda p: p | {"model.layers.*.self_attn.o_proj": "colwise"},
            marks=pytest.mark.faults,
            id="o_proj by outputs",
        ),
        pytest.param(
            "llama",
            lambda _: {"model.layers.*.self_attn.q_proj": "colwise"},
            marks=pytest.mark.faults,
            id="q_proj alone",
        ),
        pytest.param(
            "qwen3",
            lambda p: {k: s for k, s in p.items() if "_norm" not in k},
            id="without norms",
        ),
    ],
)
def test_declared_plans_of_transformers_that_are_wrong_are_named(name, change):
    plan = family_planned(name, change)
    wrong = [one for one in plan.dropped if one.because.startswith("they are wrong")]
    (one,) = [one for one in wrong if one.is_declared]
    assert all("self_attn" in pattern for pattern in one.names)
    assert not any("self_attn" in pattern for pattern in plan.declared)
    if name == "qwen3":
        assert re.search(r"gradient of .*_norm.weight is off by", one.because)
