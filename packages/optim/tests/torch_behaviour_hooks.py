"""Rows of hooks: each runs once, at its place, and what it returns is used."""

from copy import deepcopy

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch_behaviour import row


def _before_saving(optimizer):
    optimizer.state["test"] = 1


def _after_saving(_, state_dict):
    state_dict["saw_test"] = state_dict["state"].pop("test", None) is not None
    return state_dict


def _sets_rate(_, state_dict):
    state_dict["param_groups"][0]["lr"] = 0.002


def _returns_other(_, state_dict):
    mine = deepcopy(state_dict)
    mine["param_groups"][0]["lr"] = 0.003
    return mine


def _after_loading(optimizer):
    optimizer.state["saw_rate"] = optimizer.param_groups[0]["lr"] == 0.003
    optimizer.state["ran"] = True


def _each(subject, way):
    for options in subject.all_inputs(way):
        param = torch.rand(2, 3, requires_grad=True)
        yield subject.build([param], **options)


@row("test_state_dict_pre_hook", "what it puts into the state is saved")
def state_dict_pre_hook(subject, way):
    for optimizer in _each(subject, way):
        optimizer.register_state_dict_pre_hook(_before_saving)
        assert optimizer.state_dict()["state"]["test"] == 1


@row("test_state_dict_post_hook", "what it returns is the state dict")
def state_dict_post_hook(subject, way):
    for optimizer in _each(subject, way):
        optimizer.register_state_dict_post_hook(_after_saving)
        assert optimizer.state_dict()["saw_test"] is False


@row("test_state_dict_pre_post_hook", "the second sees what the first put there")
def state_dict_both_hooks(subject, way):
    for optimizer in _each(subject, way):
        optimizer.register_state_dict_pre_hook(_before_saving)
        optimizer.register_state_dict_post_hook(_after_saving)
        saved = optimizer.state_dict()
        assert saved["saw_test"] is True
        assert "test" not in saved["state"]


@row(
    "test_load_state_dict_pre_hook_and_prepend",
    "it changes or replaces what is loaded; one that is prepended runs first",
)
def load_pre_hook(subject, way):
    for optimizer in _each(subject, way):
        saved = optimizer.state_dict()
        optimizer.register_load_state_dict_pre_hook(_sets_rate)
        optimizer.load_state_dict(saved)
        assert optimizer.param_groups[0]["lr"] == 0.002
        optimizer.register_load_state_dict_pre_hook(_returns_other, prepend=True)
        optimizer.load_state_dict(saved)
        assert optimizer.param_groups[0]["lr"] == 0.002


@row("test_load_state_dict_post_hook", "it runs when all is loaded")
def load_post_hook(subject, way):
    for optimizer in _each(subject, way):
        optimizer.register_load_state_dict_post_hook(_after_loading)
        optimizer.load_state_dict(optimizer.state_dict())
        assert optimizer.state["saw_rate"] is False
        assert optimizer.state["ran"] is True


@row(
    "test_load_state_dict_pre_post_hook",
    "the second sees what the first replaced, and a step works with it",
)
def load_both_hooks(subject, way):
    for optimizer in _each(subject, way):
        optimizer.register_load_state_dict_pre_hook(_returns_other)
        optimizer.register_load_state_dict_post_hook(_after_loading)
        optimizer.load_state_dict(optimizer.state_dict())
        assert optimizer.state["saw_rate"] is True
        assert optimizer.state["ran"] is True
        (param,) = optimizer.param_groups[0]["params"]

        def closure(param=param):
            param.grad = torch.ones_like(param)

        before = param.detach().clone()
        subject.step(optimizer, closure)
        assert not torch.equal(before, param)


def _counted(subject, way, kind):
    for optimizer in _each(subject, way):
        seen = []
        hook = getattr(optimizer, f"register_step_{kind}_hook")(
            lambda o, *_, seen=seen: seen.append(o)
        )
        for _ in range(2):
            subject.step(optimizer, lambda: 1)
        assert seen == [optimizer] * 2
        hook.remove()
        subject.step(optimizer, lambda: 1)
        assert len(seen) == 2


row("test_step_post_hook", "it runs once a step until it is removed")(
    lambda s, w: _counted(s, w, "post")
)
row("test_step_pre_hook", "it runs once a step until it is removed")(
    lambda s, w: _counted(s, w, "pre")
)


@row(
    "test_step_all_hooks",
    "hooks of all optimizers and of one run in order, once a step of the optimizer",
)
def all_step_hooks(subject, way):
    for optimizer in _each(subject, way):
        seen = []

        def note(what, seen=seen, optimizer=optimizer):
            def hook(of, *_):
                # A base that steps within is an optimizer of its own.
                if of is optimizer:
                    seen.append(what)

            return hook

        handles = [
            register_optimizer_step_pre_hook(note("all before")),
            register_optimizer_step_post_hook(note("all after")),
            optimizer.register_step_pre_hook(note("before")),
            optimizer.register_step_post_hook(note("after")),
        ]
        try:
            for _ in range(2):
                subject.step(optimizer, lambda: 1)
        finally:
            for handle in handles:
                handle.remove()
        expected = ["all before", "before", "after", "all after"]
        assert seen == expected * 2
        subject.step(optimizer, lambda: 1)
        assert seen == expected * 2
