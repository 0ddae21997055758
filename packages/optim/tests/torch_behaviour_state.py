"""Rows of state dicts, copies and text: what is saved, loaded, printed and copied."""

import io
from copy import deepcopy

import torch
from torch_behaviour import Regression, row, same


def _params(problem, named):
    if not named:
        return problem.params
    return [(f"name{i}", p) for i, p in enumerate(problem.params)]


def _prime(subject, optimizer, problem, number=3):
    closure = problem.closure(optimizer)
    for _ in range(number):
        subject.step(optimizer, closure)


def _without_names(state_dict):
    copied = deepcopy(state_dict)
    for group in copied["param_groups"]:
        group.pop("param_names", None)
    return copied


@row("test_optimizer_can_be_printed", "repr works, for new ones and after a step")
def can_be_printed(subject, way):
    for options in subject.all_inputs(way):
        problem = Regression()
        optimizer = subject.build(problem.params, **options)
        text = repr(optimizer)
        assert text.startswith(type(optimizer).__name__)
        assert "Parameter Group 0" in text
        assert f"lr: {options.get('lr', 0.001)}" in text
        _prime(subject, optimizer, problem, 1)
        assert "Parameter Group 0" in repr(optimizer)


def _inputs(subject, way, *, named):
    """Returns all options, and a few where only the names matter."""
    return subject.all_inputs(way)[: 2 if named else None]


def _deterministic(subject, way, first_named, second_named):
    for options in _inputs(subject, way, named=first_named or second_named):
        problem = Regression()
        optimizer = subject.build(_params(problem, first_named), **options)
        _prime(subject, optimizer, problem, 10)
        twin = problem.twin()
        other = subject.build(_params(twin, second_named), **options)
        before = deepcopy(optimizer.state_dict())
        given = deepcopy(before)
        other.load_state_dict(given)
        same(given, before)
        for _ in range(10):
            _prime(subject, optimizer, problem, 1)
            _prime(subject, other, twin, 1)
            same(twin.params, problem.params)
        one, two = map(_without_names, (optimizer.state_dict(), other.state_dict()))
        same(two, one)
        other.param_groups.extend(other.param_groups)
        repeated = _without_names(other.state_dict())["param_groups"][-1]
        same(repeated, one["param_groups"][-1])


for _first in (False, True):
    for _second in (False, True):
        row(
            "test_state_dict_deterministic: "
            f"{'named' if _first else 'plain'} into {'named' if _second else 'plain'}",
            "a loaded state steps as the one it was saved from, and the dicts are equal",
        )(lambda s, w, a=_first, b=_second: _deterministic(s, w, a, b))


def _convolution():
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(4, 2, 1, stride=2), torch.nn.BatchNorm2d(2)
    )
    data = torch.rand(1, 4, 16, 16)

    def closure(optimizer):
        def compute():
            optimizer.zero_grad()
            loss = model(data).sum()
            loss.backward()
            return loss

        return compute

    return model, closure


@row(
    "test_can_load_older_state_dict",
    "a state dict without the flags that came later loads, and steps",
)
def older_state_dict(subject, way):
    for options in subject.all_inputs(way):
        model, closure = _convolution()
        optimizer = subject.build(model.parameters(), **options)
        for _ in range(3):
            subject.step(optimizer, closure(optimizer))
        old = deepcopy(optimizer.state_dict())
        for group in old["param_groups"]:
            for flag in (
                "foreach",
                "differentiable",
                "maximize",
                "capturable",
                "fused",
            ):
                group.pop(flag, None)
        optimizer.load_state_dict(old)
        before = [p.detach().clone() for p in model.parameters()]
        subject.step(optimizer, closure(optimizer))
        assert not all(map(torch.equal, model.parameters(), before))


def _from_to_named(subject, way, first_named, second_named):
    for options in _inputs(subject, way, named=first_named or second_named):
        model, closure = _convolution()
        given = model.named_parameters if first_named else model.parameters
        taken = model.named_parameters if second_named else model.parameters
        first = subject.build(given(), **options)
        for _ in range(3):
            subject.step(first, closure(first))
        second = subject.build(taken(), **options)
        second.load_state_dict(deepcopy(first.state_dict()))
        second.zero_grad()
        subject.step(second, closure(second))
        names = second.state_dict()["param_groups"][0].get("param_names")
        if first_named or second_named:
            assert names == ["0.weight", "0.bias", "1.weight", "1.bias"]
        else:
            assert names is None


for _first in (False, True):
    for _second in (False, True):
        row(
            "test_can_load_from_to_named_state_dict: "
            f"{'named' if _first else 'plain'} into {'named' if _second else 'plain'}",
            "loads and steps; names are kept if one of the two has them",
        )(lambda s, w, a=_first, b=_second: _from_to_named(s, w, a, b))


def _save_load(subject, way, named):
    for options in _inputs(subject, way, named=named):
        problem = Regression()
        optimizer = subject.build(_params(problem, named), **options)
        _prime(subject, optimizer, problem)
        saved = optimizer.state_dict()
        file = io.BytesIO()
        torch.save(saved, file)
        for weights_only in (False, True):
            file.seek(0)
            same(torch.load(file, weights_only=weights_only), saved)


for _named in (False, True):
    row(
        f"test_save_load_equality_with_weights_only: {'named' if _named else 'plain'}",
        "what torch.load returns is what was saved, with weights_only too",
    )(lambda s, w, a=_named: _save_load(s, w, a))


@row(
    "test_load_nontensor_step",
    "a state whose counts of steps are numbers loads, and steps as if they were tensors",
)
def number_for_step(subject, way):
    for options in subject.all_inputs(way):
        problem = Regression()
        optimizer = subject.build(problem.params, **options)
        _prime(subject, optimizer, problem)
        twin = problem.twin()
        other = subject.build(twin.params, **options)
        saved = deepcopy(optimizer.state_dict())
        for state in saved["state"].values():
            if "step" in state:
                state["step"] = state["step"].item()
        assert not subject.keeps_moments or isinstance(saved["state"][0]["step"], float)
        other.load_state_dict(saved)
        _prime(subject, optimizer, problem, 1)
        _prime(subject, other, twin, 1)
        same(twin.params, problem.params)


@row(
    "test_deepcopy_copies_all_public_attrs",
    "a deep copy has the same public attributes; it steps its own copies of weights",
)
def deep_copy(subject, way):
    for options in subject.all_inputs(way):
        problem = Regression()
        optimizer = subject.build(problem.params, **options)
        _prime(subject, optimizer, problem)
        copied = deepcopy(optimizer)
        names = [{k for k in vars(o) if k[0] != "_"} for o in (optimizer, copied)]
        assert names[0] == names[1]
        assert "defaults" in names[0]
        twin = problem.twin()
        twin.params = copied.param_groups[0]["params"]
        twin.weight, twin.bias = twin.params
        _prime(subject, copied, twin, 1)
        _prime(subject, optimizer, problem, 1)
        same(twin.params, problem.params)


@row("test_non_empty_state", "after a step no state of a parameter is empty")
def state_is_not_empty(subject, way):
    for options in subject.all_inputs(way):
        problem = Regression()
        optimizer = subject.build(problem.params, **options)
        _prime(subject, optimizer, problem, 1)
        assert all(len(state) > 0 for state in optimizer.state.values())
        assert not subject.keeps_moments or len(optimizer.state) == 2
