"""The tree of errors, as its docstring draws it, and what an error carries."""

from __future__ import annotations

import builtins
import inspect
import pickle
import re

import pytest

from drivetrain_core import Code, PlanError, PlanFormatError, _errors

NAMES = [name for name in vars(_errors) if name.endswith("Error")]


def drawn():
    """Returns (name, built-in or empty) for each error in the docstring."""
    lines = [line for line in _errors.__doc__.splitlines() if "- " in line]
    found = [re.search(r"- (\w+)(?: \((\w+)\))?", line) for line in lines]
    return {match[1]: match[2] for match in found}


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"DrivetrainError"}))
def test_error_inherits_the_base_and_a_builtin(name):
    kind = getattr(_errors, name)
    assert issubclass(kind, _errors.DrivetrainError)
    others = [b for b in kind.__mro__ if b.__module__ == "builtins"]
    assert set(others) > {Exception, BaseException, object}
    assert inspect.getdoc(kind)


def test_docstring_draws_every_error_with_its_builtin():
    assert {"DrivetrainError", *drawn()} == set(NAMES)
    for name, builtin in drawn().items():
        if builtin:
            assert getattr(builtins, builtin) in getattr(_errors, name).__bases__


def test_error_of_a_name_keeps_the_message_alone():
    # A KeyError would put quotes around it.
    assert str(_errors.NamesError("no tensor 'w'")) == "no tensor 'w'"


@pytest.mark.parametrize("kind", [PlanError, PlanFormatError])
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plan_error_crosses_processes_with_its_parts(kind, protocol):
    error = kind(
        Code.MEMORY, "fsdp", because="too big", fix="shrink", evidence={"log": "x"}
    )
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is kind
    assert str(again) == str(error) == "fsdp: too big (MEMORY). Fix: shrink"
    assert (again.code, again.optimization) == (Code.MEMORY, "fsdp")
    assert (again.because, again.fix) == ("too big", "shrink")
    assert again.evidence == {"log": "x"}


def test_plan_error_without_a_fix_offers_none():
    error = PlanError("HANG", "compile", because="it hung")
    assert error.code is Code.HANG
    assert str(error) == "compile: it hung (HANG)"
    assert error.evidence == {}


def test_plan_error_refuses_an_unknown_code():
    with pytest.raises(ValueError, match="NO_SUCH"):
        PlanError("NO_SUCH", "compile", because="x")


def test_codes_are_sorted_and_equal_their_names():
    assert [code.name for code in Code] == sorted(code.value for code in Code)
    assert all(code == code.name for code in Code)
