"""Which implementation is chosen, and what an impossible wish says."""

from dataclasses import dataclass

import pytest
import torch

from drivetrain_kernels import (
    ImplementationError,
    ImplementationNameError,
    OptionError,
    explain,
    rms_norm,
)
from drivetrain_kernels._dispatch import Implementation, Op


@dataclass(frozen=True, kw_only=True)
class Facts:
    device: str


def table(**rules):
    def implementation(name, **rule):
        return Implementation(
            name=name, call=lambda *args: (name, args), because=f"why {name}", **rule
        )

    return Op(
        name="twice",
        implementations=(
            implementation("fast", **rules),
            implementation("careful", automatic=lambda facts: "is slow here"),
            implementation("reference"),
        ),
        facts=Facts,
        example=lambda device, dtype: ((), {}),
    )


def test_auto_takes_the_first_that_nothing_is_against():
    found = table().choose(Facts(device="cuda"))
    assert (found.implementation.name, found.reason) == ("fast", "why fast")
    assert found.passed_over == ()


def test_auto_tells_what_it_passed_over():
    op = table(refuse=lambda facts: f"needs a CUDA tensor, got {facts.device}")
    found = op.choose(Facts(device="cpu"))
    assert found.implementation.name == "reference"
    assert found.passed_over == (
        ("fast", "needs a CUDA tensor, got cpu"),
        ("careful", "is slow here"),
    )


@pytest.mark.parametrize("name", ["fast", "careful", "reference"])
def test_name_takes_that_one_whatever_auto_prefers(name):
    op = table()
    found = op.choose(Facts(device="cpu"), name)
    assert found.implementation.name == name
    assert found.reason == "it was asked for by name"
    assert op.run(Facts(device="cpu"), name, 1, 2) == (name, (1, 2))


@pytest.mark.parametrize("rules", [{}, {"refuse": lambda facts: "cannot"}])
def test_run_takes_what_choose_says(rules):
    op, facts = table(**rules), Facts(device="cpu")
    chosen = op.choose(facts).implementation.name
    assert op.run(facts, "auto", 5) == (chosen, (5,))


def test_name_of_one_that_refuses_is_an_error_with_the_alternatives():
    op = table(refuse=lambda facts: f"needs a CUDA tensor, got {facts.device}")
    message = (
        "^twice: the implementation 'fast' cannot take this call: it needs a CUDA "
        r"tensor, got cpu; here are 'careful', 'reference', or take 'auto' \(Facts"
    )
    with pytest.raises(ImplementationError, match=message):
        op.run(Facts(device="cpu"), "fast")


def test_unknown_name_is_an_error_with_the_names():
    message = "^twice: there is no implementation 'quick'; it has 'fast', 'careful', "
    with pytest.raises(ImplementationNameError, match=message):
        table().choose(Facts(device="cpu"), "quick")


def test_explain_of_an_unknown_op_lists_the_ops():
    with pytest.raises(
        OptionError, match=r"there is no op 'rms'; there are .*rms_norm"
    ):
        explain("rms")


@pytest.mark.parametrize("other", [torch.nn.functional.rms_norm, torch.nn.Identity()])
def test_what_is_no_op_of_the_package_is_not_explained(other):
    with pytest.raises(OptionError, match="is no op of this package"):
        explain(other, torch.ones(2, 8))


def test_call_that_lacks_arguments_is_told_of_by_the_ops_name():
    with pytest.raises(TypeError, match=r"rms_norm\(\) missing 1 required"):
        explain(rms_norm)
