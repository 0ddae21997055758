"""The short descriptions say what the classes say."""

import inspect

import pytest

import drivetrain_optim
from drivetrain_optim._catalog import OPTIMIZERS


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_description_repeats_the_docstring(name):
    description = OPTIMIZERS[name]
    doc = inspect.getdoc(getattr(drivetrain_optim, name.upper()))
    assert doc.startswith(description.line)
    lines = [line.strip() for line in doc.splitlines()]
    start = lines.index(description.equations[0])
    assert lines[start : start + len(description.equations)] == [*description.equations]
    assert description.paper.rsplit(maxsplit=1)[1] in doc
