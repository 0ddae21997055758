"""`replace`: what it finds, what it leaves, that results stay, and the way back."""

import copy
import math
import pickle
import re
import types

import pytest
import torch
from replace_models import GatedMLP, GemmaNorm, L1Norm, LlamaNorm, Model
from torch import nn

from drivetrain_kernels import (
    ImplementationError,
    ImplementationNameError,
    ReplacementError,
    replace,
)
from drivetrain_kernels.replacement import _check

REFERENCE = dict.fromkeys(
    ("rms_norm", "layer_norm", "swiglu", "geglu", "cross_entropy"), "reference"
)
X = torch.linspace(-2.0, 2.0, 48).view(2, 3, 8)


def outcome(model, x=X):
    model.zero_grad()
    out = model(x)
    (out * torch.arange(out.numel()).cos().view(out.shape)).sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters())]


def test_everything_alike_is_found_and_computes_the_same():
    model = Model()
    expected = outcome(model)
    replacement = replace(model, REFERENCE)
    found = {one.name: one.op.partition(",")[0] for one in replacement.replaced}
    assert found == {
        "first": "rms_norm(eps=1e-06",
        "mlp": "swiglu",
        "second": "rms_norm(eps=1e-06",
        "gelu": "geglu(approximate=tanh)",
        "joined": "swiglu",
        "third": "rms_norm(eps=1.19209e-07",
        "fourth": "layer_norm(eps=1e-05)",
    }
    assert all(one.error <= 1e-5 for one in replacement.replaced)
    (left,) = replacement.left
    assert left.name == "odd"
    assert left.why == "its forward does abs, which no formula here has"
    for ours, theirs in zip(outcome(model), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_random_state_is_not_touched():
    model = Model()
    before = torch.get_rng_state()
    replace(model, REFERENCE)
    replace(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_undo_is_exact_and_twice_is_once():
    model = Model()
    before = [dict(vars(module)) for module in model.modules()]
    expected = outcome(model)
    replacement = replace(model, REFERENCE)
    assert [vars(module) for module in model.modules()] != before
    replacement.undo()
    replacement.undo()
    assert [vars(module) for module in model.modules()] == before
    again = outcome(model)
    assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))
    replacement.redo()
    replacement.redo()
    assert "forward" in vars(model.first)
    with replacement:
        pass
    assert "forward" not in vars(model.first)


def test_stand_in_is_what_runs(monkeypatch):
    called = []
    model = nn.Sequential(nn.RMSNorm(8, eps=1e-6))
    replace(model, {"rms_norm": "reference"})
    op = "drivetrain_kernels.replacement._norms._rms_norm.rms_norm"
    real = _check.sample_input
    monkeypatch.setattr(op, lambda x, *args, **kwargs: called.append(kwargs) or x)
    model(real(8, torch.device("cpu"), torch.float32))
    (options,) = called
    assert options["impl"] == "reference"
    assert options["eps"] == 1e-6


@pytest.mark.parametrize(
    ("module", "what"),
    [
        (LlamaNorm(8), "offset=0, cast=input"),
        (GemmaNorm(8), "offset=1, cast=float32"),
    ],
)
def test_rounding_is_found_out_even_where_the_weights_are_wide(module, what):
    (found,) = replace(nn.ModuleList([module]), REFERENCE).replaced
    assert what in found.op
    # Then it holds as well after the model was converted.
    narrow = copy.deepcopy(module).to(torch.bfloat16)
    x = X.to(torch.bfloat16)
    expected = type(module).forward(narrow, x)
    assert torch.equal(narrow(x), expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_of_other_dtypes_are_replaced(dtype):
    model = Model().to(dtype)
    if dtype == torch.float64:
        # These compute in float32 whatever they are given.
        del model.first, model.second
    expected = outcome(model, X.to(dtype))
    replacement = replace(model, REFERENCE)
    assert len(replacement.replaced) == len(list(model.children())) - 1
    error = _check.TOLERANCES[dtype]
    for ours, theirs in zip(outcome(model, X.to(dtype)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=4 * error, atol=4 * error)


def test_names_state_hooks_copies_and_pickles_survive():
    model = Model()
    names = [name for name, _ in model.named_parameters()]
    seen = []
    model.first.register_forward_hook(lambda *_: seen.append("hook"))
    replace(model, REFERENCE)
    assert [name for name, _ in model.named_parameters()] == names
    model.load_state_dict(Model().state_dict())
    expected = model(X)
    assert seen == ["hook"]
    copied = copy.deepcopy(model)
    assert copied.first.forward.__self__ is copied.first
    torch.testing.assert_close(copied(X), expected)
    seen.clear()
    model.first._forward_hooks.clear()
    again = pickle.loads(pickle.dumps(model))
    assert again.first.forward.__func__ is LlamaNorm.forward
    torch.testing.assert_close(again(X), expected)


def test_shared_instance_is_replaced_once():
    norm = nn.RMSNorm(8)
    model = nn.Sequential(norm, nn.Linear(8, 8), norm)
    replacement = replace(model, REFERENCE)
    assert [one.name for one in replacement.replaced] == ["0"]
    replacement.undo()
    assert "forward" not in vars(norm)


def test_replaced_model_is_left_alone_the_second_time():
    model = Model()
    first = replace(model, REFERENCE)
    second = replace(model, REFERENCE)
    assert not second.replaced
    assert {one.why for one in second.left if one.name != "odd"} == {"replaced already"}
    second.undo()
    assert "forward" in vars(model.first)
    first.undo()


def test_automatic_plan_replaces_nothing_on_a_cpu_and_says_so():
    replacement = replace(Model())
    assert not replacement.replaced
    assert "rms_norm would run torch's operators here as well" in str(replacement)


def test_kinds_that_the_plan_does_not_name_are_left_without_a_word():
    replacement = replace(Model(), {"swiglu": "reference"})
    assert {one.op for one in replacement.replaced} == {"swiglu"}
    assert {one.name for one in replacement.left} == {"gelu"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m.compile(backend="eager"), "the model is compiled"),
        (lambda m: setattr(m[0], "forward", lambda x: x), "has set its forward"),
        (lambda m: m.to("meta"), "its parameters are on the meta device"),
        (lambda m: m.to(torch.float8_e4m3fn), "are torch.float8_e4m3fn"),
    ],
)
def test_module_in_a_state_that_forbids_it_is_left(change, why):
    model = nn.Sequential(nn.RMSNorm(8, eps=1e-6))
    with torch.no_grad():
        change(model)
    (left,) = replace(model, REFERENCE).left
    assert why in left.why


def test_dropout_is_found_in_a_model_in_evaluation():
    mlp = GatedMLP(8, nn.Sequential(nn.SiLU(), nn.Dropout(0.5)))
    model = nn.Sequential(mlp).eval()
    (left,) = replace(model, REFERENCE).left
    assert re.match(r"its forward does .*bernoulli.*, which no formula", left.why)
    assert not any(module.training for module in model.modules())


def test_call_of_another_form_goes_to_the_module_itself():
    model = nn.Sequential(LlamaNorm(8))
    replace(model, REFERENCE)
    narrow = X.to(torch.bfloat16)
    # Llama's norm promotes: the op, which keeps the dtype, would not.
    assert model(narrow).dtype == torch.float32
    assert torch.equal(model[0](hidden_states=narrow), model(narrow))


def test_transformer_encoder_of_torch_trains_as_before():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    expected = outcome(model)
    replacement = replace(model, REFERENCE, example=X)
    assert len(replacement.replaced) == 4
    assert "takes scaled_dot_product_attention already" in str(replacement)
    for ours, theirs in zip(outcome(model), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
def test_layers_share_what_is_compiled_of_a_replaced_block():
    blocks = [nn.Sequential(nn.Linear(8, 8), LlamaNorm(8)) for _ in range(3)]
    for block in blocks:
        replace(block, REFERENCE)
    graphs = []

    def run(module, x):
        return module(x)

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(run, backend=backend, fullgraph=True)
    for block in blocks:
        torch.testing.assert_close(compiled(block, X), block(X))
    assert len(graphs) == 1


def test_output_that_changes_on_the_example_undoes_everything():
    calls = []

    class Counted(nn.Module):
        def forward(self, x):
            calls.append(1)
            return x * len(calls)

    model = nn.Sequential(LlamaNorm(8), Counted())
    with pytest.raises(ReplacementError, match=r"changed by .* nothing was replaced"):
        replace(model, REFERENCE, example=X)
    assert "forward" not in vars(model[0])


class Last(nn.Module):
    """Ends in what is given."""

    def __init__(self, end):
        super().__init__()
        self.norm, self.end = LlamaNorm(8), end

    def forward(self, x):
        return self.end(self, self.norm(x))


def not_a_number(model, out):
    out = out.clone()
    out[0, 0, 0] = math.nan
    return out if "forward" not in vars(model.norm) else out * math.nan


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (lambda _, out: out.argmax(-1), "a Tensor, holds no floating tensor"),
        (lambda _, out: types.SimpleNamespace(logits=out), "a SimpleNamespace, holds"),
        (not_a_number, "output on the example changed by"),
    ],
    ids=["whole numbers", "object", "nan"],
)
def test_example_whose_output_cannot_be_the_same_is_an_error(end, message):
    model = Last(end)
    with pytest.raises(ReplacementError, match=message):
        replace(model, REFERENCE, example=X)
    assert "forward" not in vars(model.norm)


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        ({"rmsnorm": "auto"}, ReplacementError, "no kind 'rmsnorm', nearest: rms_norm"),
        ({"rms_norm": "cuda"}, ImplementationNameError, "no implementation 'cuda'"),
        ("fast", ReplacementError, "'auto' or a mapping of kinds, got 'fast'"),
        ({"swiglu": "triton"}, ImplementationError, "needs a CUDA tensor, got cpu"),
    ],
)
def test_plan_that_cannot_be_followed_is_an_error(plan, error, message, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    model = nn.Sequential(GatedMLP(8, nn.SiLU()), L1Norm(8))
    with pytest.raises(error, match=message):
        replace(model, plan)
    assert "forward" not in vars(model[0])


def test_what_is_no_module_is_refused():
    with pytest.raises(ReplacementError, match="takes a module, got int"):
        replace(3)


def test_epsilon_that_is_not_given_is_that_of_what_is_computed_in():
    norm = nn.RMSNorm(64).bfloat16()
    model = nn.Sequential(norm)
    small = (1e-3 * torch.randn(4, 64)).bfloat16()
    plain = model(small)
    assert replace(model, REFERENCE).replaced
    torch.testing.assert_close(model(small), plain)


class ClampedMLP(GatedMLP):
    """Differs where values are large."""

    def forward(self, x):
        gate = self.act(self.gate_proj(x).clamp(max=7.0))
        return self.down_proj(gate * self.up_proj(x).clamp(-7.0, 7.0))


class FlooredNorm(LlamaNorm):
    """Differs where values are small."""

    def forward(self, hidden_states):
        mean = hidden_states.square().mean(-1, keepdim=True)
        floor = mean.clamp(min=self.variance_epsilon)
        return hidden_states * floor.rsqrt() * self.weight


class ShortMLP(GatedMLP):
    """Differs where a sequence is long."""

    def forward(self, x):
        return super().forward(x) * (2.0 if x.shape[1] > 5 else 1.0)


class CentredNorm(LlamaNorm):
    """Differs where rows have a mean."""

    def forward(self, hidden_states):
        wide = hidden_states.float()
        wide = wide - wide.mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(hidden_states.dtype)


class WatchfulNorm(LlamaNorm):
    """Looks at its values."""

    def forward(self, hidden_states):
        if hidden_states.abs().max() > 100:
            return hidden_states
        return super().forward(hidden_states)


class QuickGelu(nn.Module):
    """Near GELU."""

    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("module", "why"),
    [
        (ClampedMLP(8, nn.SiLU()), "its forward does clamp"),
        (FlooredNorm(8), "its forward does clamp"),
        (ShortMLP(8, nn.SiLU()), "differs by"),
        (CentredNorm(2048), "in float64 it differs by"),
        (WatchfulNorm(8), "its forward cannot be traced: "),
        (GatedMLP(8, QuickGelu()), "in float64 it differs by"),
        (GatedMLP(8, nn.ReLU()), "its forward does relu"),
    ],
    ids=["clamp", "floor", "length", "mean", "looks", "quick gelu", "relu"],
)
def test_what_differs_somewhere_is_left_with_the_reason(module, why, dtype):
    model = nn.Sequential(copy.deepcopy(module).to(dtype))
    replacement = replace(model, REFERENCE)
    assert not replacement.replaced
    assert why in replacement.left[0].why


@pytest.mark.parametrize(
    "mode",
    [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu")],
    ids=["inference", "no_grad", "autocast"],
)
def test_stand_ins_are_checked_alike_whatever_mode_it_is_in(mode):
    model = nn.Sequential(LlamaNorm(8), GatedMLP(8, nn.SiLU()))
    with mode():
        replacement = replace(model, REFERENCE)
    assert len(replacement.replaced) == 2


def test_model_that_was_pickled_can_be_replaced_again():
    model = nn.Sequential(nn.RMSNorm(8, eps=1e-6))
    replace(model, REFERENCE)
    again = pickle.loads(pickle.dumps(model))
    replacement = replace(again, REFERENCE)
    assert replacement.replaced
    assert torch.equal(again(X), model(X))
    replacement.undo()
    torch.testing.assert_close(again(X), model(X))


def test_modules_do_not_notice_that_they_were_tried():
    class Noted(GatedMLP):
        def __init__(self, width, act):
            super().__init__(width, act)
            self.num_calls, self.last = 0, None
            self.register_buffer("largest", torch.zeros(()))

        def forward(self, x):
            self.num_calls += 1
            self.last = x.shape
            self.largest.copy_(x.detach().abs().max())
            return super().forward(x)

    model = Noted(8, nn.SiLU())
    fired = []
    for part in (model, model.gate_proj, model.up_proj, model.down_proj):
        part.register_forward_hook(lambda *_: fired.append("forward"))
        part.register_full_backward_hook(lambda *_: fired.append("backward"))
    replacement = replace(model, {"swiglu": "reference"})
    # What it notes would be lost.
    assert replacement.left[0].why == "its forward writes to largest, last, num_calls"
    assert (model.num_calls, model.last, fired) == (0, None, [])
    assert model.largest == 0
    assert model.training


class ScaledNorm(LlamaNorm):
    """Reads options at each call, one of them elsewhere."""

    def __init__(self, width):
        super().__init__(width)
        self.scale, self.config = 1.0, types.SimpleNamespace(offset=0.0)

    def forward(self, x):
        return self._scaled(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def _scaled(self, x):
        return self.scale * x * (self.config.offset + self.weight)


@pytest.mark.parametrize("change", ["scale", "offset"])
def test_option_that_changes_later_counts(change):
    model = nn.Sequential(ScaledNorm(8))
    replacement = replace(model, {"rms_norm": "reference"})
    assert replacement.replaced
    norm = model[0]
    place = norm if change == "scale" else norm.config
    before = getattr(place, change)
    plain = model(X)
    setattr(place, change, 0.5)
    torch.testing.assert_close(model(X), type(norm).forward(norm, X))
    assert not torch.allclose(model(X), plain)
    setattr(place, change, before)
    torch.testing.assert_close(model(X), plain)


def test_hook_on_an_activation_fires_whenever_it_was_put_on():
    before = nn.Sequential(GatedMLP(8, nn.SiLU()))
    before[0].act.register_forward_hook(lambda _, args, out: out.clamp(min=0.0))
    replacement = replace(before, {"swiglu": "reference"})
    assert replacement.left[0].why == "its part 'act' has hooks, which would not fire"

    after, seen = nn.Sequential(GatedMLP(8, nn.SiLU())), []
    expected = after(X)
    assert replace(after, {"swiglu": "reference"}).replaced
    hook = after[0].act.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(after(X), expected)
    assert seen == [1]
    hook.remove()
    everywhere = nn.modules.module.register_module_forward_hook(
        lambda module, *_: seen.append(type(module).__name__)
    )
    after(X)
    everywhere.remove()
    assert "SiLU" in seen
    after[0].act = nn.Tanh()
    assert not torch.allclose(after(X), expected)


def test_part_that_is_no_longer_a_linear_layer_is_the_modules_own():
    class Odd(nn.Linear):
        def forward(self, x):
            return -super().forward(x)

    model = nn.Sequential(GatedMLP(8, nn.SiLU()))
    expected = model(X)
    assert replace(model, {"swiglu": "reference"}).replaced
    odd = Odd(24, 8, bias=False)
    odd.weight = model[0].down_proj.weight
    model[0].down_proj = odd
    torch.testing.assert_close(model(X), -expected)
    # A weight that is no tensor, as in what quantisation puts there.
    model[0].down_proj = nn.Sequential(odd)
    torch.testing.assert_close(model(X), -expected)


def test_large_feed_forward_is_proven_by_few_columns():
    mlp = GatedMLP(1024, nn.SiLU())
    (found,) = replace(nn.Sequential(mlp), {"swiglu": "reference"}).replaced
    assert found.error <= 1e-5

    class Fixed(GatedMLP):
        def forward(self, x):
            return super().forward(x).reshape(*x.shape[:-1], 64)

    assert replace(
        nn.Sequential(Fixed(64, nn.SiLU())), {"swiglu": "reference"}
    ).replaced


def test_meta_model_is_left_with_the_reason():
    with torch.device("meta"):
        model = nn.Sequential(LlamaNorm(8), GatedMLP(8, nn.SiLU()))
    replacement = replace(model, REFERENCE)
    assert {one.why for one in replacement.left} == {
        "its parameters are on the meta device"
    }
