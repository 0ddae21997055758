"""The key of the cache: what changes it, and what does not."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import subprocess
import sys
import types

import pytest
import torch
from torch import nn

from drivetrain_core import Slot
from drivetrain_core._choice import Phase
from drivetrain_core._optimization import BaseOptimization
from drivetrain_core._plugins import OPTIMIZATIONS
from drivetrain_core._registry import register, unregister
from drivetrain_search.cache import cache_key as module
from drivetrain_search.cache.cache_key import cache_key, surroundings
from drivetrain_search.cache.code_hash import hash_code

AROUND = {"torch": "1"}
HEADER = (
    "import torch, functools\nfrom torch import nn\nimport torch.nn.functional as F\n"
)


def made(source, name="f"):
    """Returns what a source defines, as a module of its own would."""
    scope = {"__name__": "somebody"}
    exec(HEADER + source, scope)  # noqa: S102
    return scope[name]


MODEL = """
class Inner(nn.Module):
    def __init__(self, heads=2):
        super().__init__()
        self.heads, self.act = heads, F.{act}
        self.config = type("Config", (), {{}})()
        self.config.eps = {eps}
        self._config = type("Config", (), {{}})()
        self._config._times = {times}
        self._private = {private}
    def forward(self, x):
        return self._helper(x)
    def _helper(self, x):
        return scale(x)
    @staticmethod
    def unused(x):
        return {static}
def scale(x):
    return x * {factor}
class f(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner({heads})
        self.weight = nn.Parameter(torch.ones(2))
    @torch.no_grad()
    def forward(self, x):
        return self.inner(x) {after}
"""
USUAL = {
    "act": "gelu",
    "eps": 1,
    "static": 1,
    "factor": 2,
    "heads": 2,
    "after": "",
    "times": 1,
    "private": 1,
}


@pytest.mark.parametrize("changed", USUAL)
def test_model_that_computes_something_else_has_another_hash(changed):
    other = {"act": "relu", "after": "+ 1"}.get(changed, 8)
    first = made(MODEL.format(**USUAL))()
    again = made(MODEL.format(**USUAL))()
    second = made(MODEL.format(**USUAL | {changed: other}))()
    assert hash_code(first) == hash_code(again)
    assert hash_code(first) != hash_code(second)


def test_weights_and_mode_do_not_count():
    model = made(MODEL.format(**USUAL))()
    before = hash_code(model)
    model.weight.data += 1
    assert hash_code(model.eval()) == before
    model.register_forward_hook(lambda *_: None).remove()
    assert hash_code(model) == before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(x): return x + 1", "def f(x): return x + 2"),
        ("def f(x): return x.a", "def f(x): return x.b"),
        ("def f(x, y=1): return y", "def f(x, y=2): return y"),
        ("def f(x, *, y=1): return y", "def f(x, *, y=2): return y"),
        ("f = lambda x: [x + 1 for _ in x]", "f = lambda x: [x + 2 for _ in x]"),
        (
            "def g(x): return 1\ndef f(x): return g(x)",
            "def g(x): return 2\ndef f(x): return g(x)",
        ),
        ("LEVEL = 1\ndef f(x): return LEVEL", "LEVEL = 2\ndef f(x): return LEVEL"),
        ("C = {'a': 1}\ndef f(x): return C", "C = {'a': 2}\ndef f(x): return C"),
        (
            "def m(a):\n return lambda x: a\nf = m(1)",
            "def m(a):\n return lambda x: a\nf = m(2)",
        ),
        ("f = functools.partial(max, 5, 5)", "f = functools.partial(max, 5, 6)"),
        ("f = functools.partial(max, key=abs)", "f = functools.partial(max, key=len)"),
        ("f = F.mse_loss", "f = F.l1_loss"),
        ("f = nn.CrossEntropyLoss()", "f = nn.MSELoss()"),
        ("f = nn.HuberLoss(delta=1.0)", "f = nn.HuberLoss(delta=2.0)"),
        (
            "class A:\n def __call__(s): return 1\nf = A()",
            "class A:\n def __call__(s): return 2\nf = A()",
        ),
        (
            "class A:\n @property\n def p(s): return 1\nf = A",
            "class A:\n @property\n def p(s): return 2\nf = A",
        ),
        ("f = None", "f = 0"),
    ],
)
def test_function_that_does_something_else_has_another_hash(one, other):
    assert hash_code(made(one)) == hash_code(made(one))
    assert hash_code(made(one)) != hash_code(made(other))


@pytest.mark.parametrize(
    "source",
    [
        "def f(x): return f(x - 1)",
        "def m():\n def g(x): return g(x)\n return g\nf = m()",
        "def f(x): return missing(x)",
        "class A: pass\nA.a = A()\nA.a.b = A.a\nf = A.a",
        "L = []\nL.append(L)\ndef f(x): return L",
        "class A(nn.Module):\n def __getattr__(s, n): raise OSError\nf = A",
        "class M(type):\n def __getattr__(s, n): raise OSError\nclass f(metaclass=M): 0",
        "f = '\\udc80'",
        "f = torch.nn.Linear(1, 1)",
        "f = torch.jit.script",
    ],
)
def test_hash_ends_for_anything(source):
    assert hash_code(made(source)) == hash_code(made(source))


def test_comments_and_places_do_not_count():
    one = made("def f(x):\n    return x")
    assert hash_code(one) == hash_code(made("\n\n# why\ndef f(x):\n\n    return x"))


def test_arguments_are_told_apart_by_their_places():
    def f(x):
        return x

    assert hash_code(f, None) != hash_code(None, f)


def test_function_of_an_imported_module_counts():
    helper = types.ModuleType("somebody_else")
    scope = {"helper": helper, "__name__": "somebody"}
    exec("def f(x): return helper.go(x)", scope)  # noqa: S102
    exec("def go(x): return 1", vars(helper))  # noqa: S102
    before = hash_code(scope["f"])
    exec("def go(x): return 2", vars(helper))  # noqa: S102
    assert hash_code(scope["f"]) != before


def test_method_of_one_module_counts():
    model = nn.Linear(2, 2)
    before = hash_code(model)
    model.forward = types.MethodType(lambda self, x: x, model)
    assert hash_code(model) != before


@pytest.mark.slow
def test_key_is_the_same_in_every_process():
    code = (
        "from drivetrain_search.cache.code_hash import hash_code\n"
        "print(hash_code(lambda x: x in {'a', 'b', 'c', 'd'}))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        ("model", {"fingerprint": "other"}),
        ("batch", {"size": 9}),
        ("batch", {"signature": "other"}),
        ("device", {"name": "other"}),
        ("device", {"num_cores": 999}),
        ("device", {"num_threads": 999}),
        ("device", {"capability": (9, 0)}),
        ("device", {"memory_bytes": 1}),
        ("loop", {"optimizer": "Other"}),
        ("loop", {"loader_workers": 9}),
        ("loop", {"optimizer_options": frozenset({"a", "b"})}),
        ("world", {"size": 9}),
    ],
    # Without the values: a set has another order in another process.
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_key_changes_with_every_fact(program, context, part, fields):
    other = dataclasses.replace(getattr(context, part), **fields)
    changed = dataclasses.replace(context, **{part: other})
    key = cache_key(context, program, around=AROUND)
    assert key == cache_key(context, program, around=dict(AROUND))
    assert key != cache_key(changed, program, around=AROUND)


@pytest.mark.parametrize(
    "fields",
    [
        {"loss": lambda output, batch: output.sum() * 3},
        {"forward": lambda model, batch: model(batch[0])},
        {"max_grad_norm": 1.0},
        {"optimizer": functools.partial(torch.optim.SGD, lr=0.1)},
        {"scheduler": lambda optimizer: None},
        {"model": nn.Linear(2, 2)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_key_changes_with_the_program(program, context, fields):
    changed = dataclasses.replace(program, **fields)
    key = cache_key(context, program, around=AROUND)
    assert key != cache_key(context, changed, around=AROUND)


def test_key_is_that_of_any_rank_and_any_seed(program, context):
    rank = dataclasses.replace(context.world, rank=3)
    changed = dataclasses.replace(context, world=rank)
    key = cache_key(context, program, around=AROUND)
    seeded = dataclasses.replace(program, seed=5)
    assert key == cache_key(changed, seeded, around=AROUND)


def test_key_takes_an_optimizer_that_is_made(program, context):
    kept = nn.Linear(1, 1)
    optimizers = [torch.optim.SGD(kept.parameters(), lr=lr) for lr in (0.1, 0.2)]
    programs = [dataclasses.replace(program, optimizer=o) for o in optimizers]
    keys = {cache_key(context, p, around=AROUND) for p in programs}
    assert len(keys) == 1


def test_key_changes_with_the_surroundings_and_the_format(
    program, context, monkeypatch
):
    key = cache_key(context, program, around=AROUND)
    assert key != cache_key(context, program, around={"torch": "2"})
    assert key != cache_key(context, program)
    monkeypatch.setattr(module, "CACHE_VERSION", 99)
    assert key != cache_key(context, program, around=AROUND)


def test_surroundings_name_plugins_by_version(distribute):
    before = surroundings("cpu")
    distribute("acme", [("x", "acme:X")], version="3.1", group=OPTIMIZATIONS)
    assert set(surroundings("cpu")["plugins"]) - set(before["plugins"]) == {"acme 3.1"}


def test_surroundings_have_the_code_of_what_is_registered():
    def own(result):
        class Own(BaseOptimization):
            name, slot, phase = "own_of_test", Slot.KERNELS, Phase.MODEL_SWAP

            def apply(self, state, config):
                return result

        return Own()

    seen = [surroundings("cpu")["registered"]]
    for result in (1, 2):
        register(own(result))
        seen.append(surroundings("cpu")["registered"])
        unregister("own_of_test")
    assert len({str(part) for part in seen}) == 3


def test_surroundings_ask_the_driver_itself(monkeypatch):
    def ask(pointer):
        pointer._obj.value = 13_000
        return 0

    library = types.SimpleNamespace(cuDriverGetVersion=ask)

    def load(name):
        if name != "libcuda.so.1":  # torch asks for others
            raise OSError(name)
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert surroundings("cuda")["driver"] == "13000"


def test_surroundings_without_a_driver_have_no_version(monkeypatch):
    def load(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert surroundings("cuda")["driver"] == ""


@pytest.mark.gpu
def test_surroundings_know_the_driver():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    around = surroundings("cuda")
    assert int(around["driver"]) >= 12_000
    assert around["num_devices"] >= 1
