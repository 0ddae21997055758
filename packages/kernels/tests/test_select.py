"""`select`: the whole way, on dynamo backends that compile in no time."""

import copy
import functools
import gc
import logging
import pickle
import weakref

import pytest
import torch
from selector_models import Blocks, Branching, Stateful, mlp
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

from drivetrain_kernels import SelectionError, select
from drivetrain_kernels.selector import _search
from drivetrain_kernels.selector._race import Timing

X = torch.linspace(-1.0, 1.0, 32).view(4, 8)
AOT = "backend:aot_eager"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIVETRAIN_CACHE_DIR", str(tmp_path))
    return tmp_path / "select"


@pytest.fixture
def ratios(monkeypatch):
    """Sets what the race measures: the ratio to eager of each candidate."""
    wanted = {}

    def race(samplers, **_):
        for sample in samplers.values():
            sample()
        return {
            name: Timing(
                step_s=wanted.get(name, 1.0),
                ratio=wanted.get(name, 1.0),
                low=wanted.get(name, 1.0) - 0.01,
                high=wanted.get(name, 1.0) + 0.01,
                num_rounds=7,
            )
            for name in samplers
        }

    monkeypatch.setattr(_search, "race", race)
    return wanted


def trial(selected, name):
    return next(t for t in selected.trials if t.name == name)


def test_eager_that_wins_is_the_very_same_object_without_a_wrapper(ratios):
    model = mlp()
    before = dict(vars(model))
    selected = select(model, [X], candidates=[AOT], cache=False)
    assert selected.choice == "eager"
    assert selected.call is model
    assert vars(model) == before
    assert selected.watch is None

    def double(x):
        return x * 2

    assert select(double, [X], candidates=[], cache=False).call is double


def test_candidate_that_wins_is_compiled_in_place_and_undone(ratios):
    ratios[AOT] = 0.8
    model = mlp()
    names = list(model.state_dict())
    expected = model(X)
    selected = select(model, [(X,)], candidates=[AOT], cache=False)
    assert selected.choice == AOT
    assert selected.call is model
    assert type(model) is nn.Sequential
    assert list(model.state_dict()) == names
    assert trial(selected, AOT).num_graphs == 1
    torch.testing.assert_close(model(X), expected)
    assert pickle.loads(pickle.dumps(model))._compiled_call_impl is None
    assert copy.deepcopy(model)._compiled_call_impl is None
    selected.undo()
    assert "_compiled_call_impl" not in vars(model)
    torch.testing.assert_close(model(X), expected, rtol=0, atol=0)


def test_function_that_wins_is_compiled_and_the_plain_one_untouched(ratios):
    ratios[AOT] = 0.8

    def scaled(x, factor=2.0):
        return (x * factor).tanh()

    selected = select(scaled, [{"x": X}], candidates=[AOT], cache=False)
    assert selected.call is not scaled
    torch.testing.assert_close(selected.call(X), scaled(X))
    assert selected.call.__name__ == "scaled"


def test_function_that_is_demoted_runs_plain(ratios):
    ratios[AOT] = 0.8
    calls = []

    def counted(x):
        if not torch.compiler.is_compiling():
            calls.append(x)
        return x.sin()

    selected = select(counted, [X], candidates=[AOT], cache=False)
    calls.clear()
    selected.call(X)
    assert not calls
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    selected.follow(optimizer)
    selected.watch.demote("slow")
    optimizer.step()
    selected.call(X)
    assert len(calls) == 1


@pytest.mark.slow
def test_blocks_whose_forward_is_torch_s_own_really_compile(ratios):
    ratios["block"] = 0.8
    model = Blocks()
    found = select(model, [X], candidates=["block"], cache=False)
    assert trial(found, "block").status == "ok"
    # Three blocks share a graph; of the first one the input needs no gradient.
    assert trial(found, "block").num_graphs == 2
    assert model._compiled_call_impl is None
    assert all(layer._compiled_call_impl for layer in model.layers)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_model_is_freed_with_its_last_user(ratios, ratio):
    ratios[AOT] = ratio
    model = Blocks(2)
    selected = select(model, [X], candidates=[AOT], cache=False)
    alive = weakref.ref(model)
    del model, selected
    gc.collect()
    assert alive() is None


@pytest.mark.slow
def test_state_is_exactly_as_before(ratios):
    model = Stateful().train()
    model.inner[3].eval()
    model(X).sum().backward()
    grads = [p.grad for p in model.parameters()]
    values = [g.clone() for g in grads]
    state = copy.deepcopy(model.state_dict())
    calls, last, random = model.calls, model.last, torch.get_rng_state()
    select(model, [X + 1], candidates=[AOT], cache=False)
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
    assert all(torch.equal(g, v) for g, v in zip(grads, values, strict=True))
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert (model.calls, model.last is last) == (calls, True)
    assert torch.equal(torch.get_rng_state(), random)
    assert (model.training, model.inner[3].training) == (True, False)


class Trainer:
    def __init__(self, model):
        self.parts = {"model": model}

    def forward(self, x):
        return self.parts["model"](x)


def of_closure(model):
    return lambda x: model(x), {}


def of_partial(model):
    return functools.partial(torch.nn.Module.__call__, model), {}


def of_method(model):
    return Trainer(model).forward, {}


def of_loss(model):
    head = nn.Linear(8, 8)
    return head, {"loss": lambda out, batch: (model(out) - batch).square().mean()}


@pytest.mark.slow
@pytest.mark.parametrize("made", [of_closure, of_partial, of_method, of_loss])
def test_state_that_functions_reach_is_as_before(ratios, made):
    model = Stateful()
    state = copy.deepcopy(model.state_dict())
    target, options = made(model)
    select(target, [X], candidates=[AOT], cache=False, **options)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert model.calls == 0


def test_gradients_that_functions_reach_are_compared(ratios):
    model = mlp()

    ratios[AOT] = 0.5

    def target(x):
        out = model(x)
        # What is compiled loses the gradients of the model.
        return x.sum() + (out.detach() if torch.compiler.is_compiling() else out).sum()

    selected = select(
        target, [X.clone().requires_grad_()], candidates=[AOT], cache=False
    )
    assert selected.choice == "eager"
    assert "differ" in selected.verdicts[AOT]


def test_backend_that_raises_costs_the_candidate_alone(ratios):
    def broken(graph, inputs):
        message = "no such kernel\nand much more"
        raise ValueError(message)

    torch._dynamo.register_backend(broken, name="broken_for_test")
    try:
        found = select(mlp(), [X], candidates=["backend:broken_for_test"], cache=False)
    finally:
        torch._dynamo.backends.registry._COMPILER_FNS.pop("broken_for_test")
        torch._dynamo.backends.registry._BACKENDS.pop("broken_for_test")
    assert found.choice == "eager"
    lost = trial(found, "backend:broken_for_test")
    assert (lost.status, lost.why) == ("failed", "ValueError: no such kernel")
    assert "no such kernel" in str(found)


def test_candidate_with_wrong_results_is_turned_down(ratios, monkeypatch):
    def wrong(graph, inputs):
        return lambda *args: [1.01 * x for x in graph(*args)]

    monkeypatch.setattr(
        "drivetrain_kernels.selector._candidates._backend", lambda candidate: wrong
    )
    ratios[AOT] = 0.1
    found = select(mlp(), [X], candidates=[AOT], cache=False)
    assert found.choice == "eager"
    assert trial(found, AOT).status == "differs"
    assert "allowed are" in trial(found, AOT).why


def test_branches_on_data_end_in_a_choice_and_are_told(ratios):
    model = Branching()
    found = select(model, [X + 1, X - 1], candidates=[AOT], cache=False)
    assert found.choice == "eager"
    assert trial(found, AOT).num_breaks > 0
    assert "graph breaks, first: Data-dependent branching" in str(found)


@pytest.mark.slow
def test_shapes_that_vary_stay_within_a_few_graphs(ratios):
    batches = [torch.ones(n, 8) for n in (2, 3, 4, 5, 6)]
    found = select(mlp(), batches, candidates=[AOT, "dynamic"], cache=False)
    assert trial(found, AOT).num_graphs <= 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["module", "function"])
def test_recompile_storm_after_the_commit_ends_in_eager(ratios, caplog, kind):
    ratios[AOT] = 0.5
    model = mlp()

    def by_flag(x, flag):
        return model(x) * flag.count("a")

    class Flagged(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x, flag):
            return by_flag(x, flag)

    target = Flagged() if kind == "module" else by_flag
    found = select(target, [(X, "a")], candidates=[AOT], cache=False)
    assert found.choice == AOT
    with caplog.at_level(logging.WARNING):
        for num in range(1, 20):
            flag = "a" * num
            torch.testing.assert_close(found.call(X, flag), by_flag(X, flag))
    assert found.watch.demoted.endswith("graphs were compiled, 5 allowed")
    assert "back to eager" in caplog.text
    if kind == "module":
        assert "_compiled_call_impl" not in vars(target)


def test_compiler_that_fails_after_the_commit_never_reaches_the_step(
    ratios, monkeypatch
):
    calls = []

    def once(graph, inputs):
        calls.append(1)
        if len(calls) > 1:
            message = "no more"
            raise ValueError(message)
        return graph.forward

    monkeypatch.setattr(
        "drivetrain_kernels.selector._candidates._backend", lambda candidate: once
    )
    ratios[AOT] = 0.5
    model = mlp()
    found = select(model, [X], candidates=[AOT], cache=False)
    plain = copy.deepcopy(model)
    torch.testing.assert_close(found.call(X[:3]), plain(X[:3]))
    assert found.watch.demoted == "ValueError: no more"
    torch.testing.assert_close(found.call(X[:2]), plain(X[:2]))


def test_loss_and_step_say_how_a_batch_is_used(ratios):
    batch = (X, torch.zeros(4, 8))
    seen = []

    def loss(output, given):
        seen.append(len(given) == 2)
        return nn.functional.mse_loss(output, given[1])

    select(mlp(), [batch], loss=loss, candidates=[], cache=False)

    def step(model, given):
        seen.append(len(given) == 2)
        return model(given[0]).sum()

    select(mlp(), [batch], step=step, candidates=[], cache=False)
    assert all(seen)


def test_remaining_steps_that_do_not_repay_a_compilation_skip_it(ratios):
    found = select(mlp(), [X], candidates=[AOT], remaining_steps=1, cache=False)
    assert trial(found, AOT).status == "skipped"
    assert "twice the speed would save" in trial(found, AOT).why
    assert trial(found, AOT).num_graphs == 0


def test_budget_that_is_too_short_compiles_nothing(ratios):
    found = select(mlp(), [X], candidates=[AOT], budget_s=0.5, cache=False)
    assert (found.choice, trial(found, AOT).status) == ("eager", "skipped")


def test_decision_is_kept_on_disk_and_taken_again(ratios, folder):
    ratios[AOT] = 0.5
    first = select(mlp(), [X], candidates=[AOT])
    assert not first.from_cache
    (path,) = folder.iterdir()
    ratios[AOT] = 2.0
    again = select(mlp(), [X], candidates=[AOT])
    assert (again.choice, again.from_cache) == (AOT, True)
    assert again.call._compiled_call_impl is not None
    assert "decided by an earlier job" in str(again)
    other = select(mlp(), [X[:2]], candidates=[AOT])
    assert (other.choice, other.from_cache) == ("eager", False)
    path.write_text('{"version": 1, "choice"', encoding="utf-8")
    assert not select(mlp(), [X], candidates=[AOT]).from_cache


def test_kept_choice_that_fails_now_ends_in_eager(ratios, monkeypatch):
    ratios[AOT] = 0.5
    select(mlp(), [X], candidates=[AOT])

    def broken(graph, inputs):
        message = "gone"
        raise ValueError(message)

    monkeypatch.setattr(
        "drivetrain_kernels.selector._candidates._backend", lambda candidate: broken
    )
    again = select(mlp(), [X], candidates=[AOT])
    assert (again.choice, again.from_cache) == ("eager", True)
    assert again.reason == (
        f"eager: an earlier job chose {AOT}, which failed: ValueError: gone"
    )


def test_random_models_are_compared_by_their_means(ratios):
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 8))
    found = select(model, [X], candidates=[AOT], cache=False)
    assert trial(found, AOT).status == "ok"


@pytest.mark.slow
def test_inductor_compiles_what_it_is_asked_to():
    selected = select(mlp(), [X], candidates=["default"], cache=False)
    assert trial(selected, "default").status == "ok"
    assert selected.choice in {"eager", "default"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"example_batches": []}, "needs one example batch or more, got none"),
        ({"candidates": ["blok"]}, "no candidate 'blok'; nearest: block"),
        ({"candidates": "block"}, "must be a list of names, got 'block'"),
        ({"budget_s": 0}, "budget_s must be a number > 0, got 0"),
        ({"budget_s": "5"}, "budget_s must be a number > 0, got '5'"),
        ({"loss": len}, r"loss is called with \(output, batch\)"),
        ({"remaining_steps": -1}, "remaining_steps must be >= 0 or None, got -1"),
        ({"tolerance": 0.0}, r"tolerance must be > 0 or None, got 0\.0"),
        ({"loss": len, "step": len}, "loss or step, got both"),
        ({"target": 3}, "takes a module or function, got 3"),
        ({"example_batches": [torch.ones(2, 3)]}, "does not run on the example"),
        ({"step": lambda model, x: model(x)}, r"must be a scalar tensor, got \(4, 8\)"),
        ({"target": torch.compile(mlp())}, "not compiled; it is"),
    ],
    ids=lambda part: part if isinstance(part, str) else "-".join(part),
)
def test_bad_input_is_a_selection_error(arguments, message):
    full = {"target": mlp(), "example_batches": [X], "cache": False, **arguments}
    with pytest.raises(SelectionError, match=message):
        select(full.pop("target"), full.pop("example_batches"), **full)


def test_module_that_is_compiled_in_place_is_refused():
    model = Blocks()
    model.layers[1].compile(backend="eager")
    with pytest.raises(SelectionError, match=r"its part 'layers\.1' is"):
        select(model, [X], cache=False)


def test_step_that_trains_is_refused_and_put_back():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())

    def step(model, x):
        model(x).sum().backward()
        optimizer.step()
        return model(x).sum()

    with pytest.raises(SelectionError, match="must not change parameters"):
        select(model, [X], step=step, cache=False)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_failing_backend_is_what_dynamo_raises():
    # What the selector catches after a commit stands on this class.
    assert issubclass(BackendCompilerFailed, torch._dynamo.exc.TorchDynamoException)


def test_buffers_that_cannot_be_written_to_are_no_error():
    model = nn.Linear(8, 8)
    model.register_buffer("view", torch.arange(8.0).expand(4, 8))
    with torch.inference_mode():
        model.register_buffer("made_for_inference", torch.arange(8.0))
    assert select(model, [X], candidates=[], cache=False).choice == "eager"
    assert model.view.tolist()[0] == list(range(8))


def test_nothing_that_was_tried_is_not_told_of_as_slower():
    selected = select(mlp(), [X], candidates=["cudagraphs"], cache=False)
    assert selected.reason == "eager: no candidate was tried"


def test_step_that_changes_its_batch_is_an_error_and_the_batch_is_as_before():
    model = nn.Linear(8, 8)
    batch = torch.zeros(4, 8)
    with pytest.raises(SelectionError, match="must not change its batch"):
        select(lambda x: model(x.add_(1.0)), [batch], candidates=[], cache=False)
    assert not batch.any()
