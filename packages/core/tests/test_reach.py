"""Which scripts cannot come to a function, and which may, for all that source tells."""

from __future__ import annotations

import sys

import pytest

from drivetrain_core.commands import reach_of


@pytest.fixture
def reach(tmp_path, monkeypatch):
    """Writes files, and looks through the first of them."""

    def run(script, files=None, *, names=("accelerate",), **options):
        (tmp_path / "train.py").write_text(script)
        for name, text in (files or {}).items():
            place = tmp_path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        options = {"folder": str(tmp_path), **options}
        program = options.pop("program", "train.py")
        return reach_of(program, names=names, **options)

    return run


TRAINING = """
import json, os, platform, re, time
from importlib.metadata import version
import numpy as np
import torch
from torch import nn
from transformers import Trainer

# This script may move to drivetrain_core.accelerate some day.
model = torch.compile(nn.Linear(2, 1)).eval()
print(re.compile("a"), os.path.join("a", "b"), platform.system(), version("torch"))
"""


@pytest.mark.parametrize(
    ("script", "files"),
    [
        (TRAINING, {}),
        ("import model", {"model.py": TRAINING}),
        ("from lib.parts import model", {"lib/parts/model.py": TRAINING}),
        ("import lib.run", {"lib/__init__.py": "", "lib/run.py": "from . import a"}),
        ("from accelerate import Accelerator\nAccelerator()", {}),
        ("import accelerate\naccelerate.Accelerator()", {}),
        ("from drivetrain_core import Plan\nPlan()", {}),
        ("from drivetrain_core import accelerate", {}),
        ("import profile", {"profile.py": "import torch"}),
    ],
    ids=str.split("plain module package relative other others plan uncalled shadow"),
)
def test_script_that_cannot_come_to_it_is_known(reach, script, files):
    found = reach(script, files)
    assert (found.is_named, found.unknown, found.is_never) == (False, "", True)


CALL = "from drivetrain_core import accelerate\naccelerate(None)\n"


@pytest.mark.parametrize(
    ("script", "files"),
    [
        (CALL, {}),
        ("import drivetrain_core as dt\ndt.accelerate()", {}),
        ("from drivetrain_core import *\naccelerate()", {}),
        ("from drivetrain_core import accelerate as go\ngo()", {}),
        ("import drivetrain_core as dt\ngetattr(dt, 'accelerate')()", {}),
        ("if 1:\n    import steps", {"steps.py": CALL}),
        ("from steps import run", {"steps.py": "from deep import *", "deep.py": CALL}),
        ("import lib.run", {"lib/__init__.py": CALL, "lib/run.py": ""}),
        ("import lib.run", {"lib/run.py": "from .core import a", "lib/core.py": CALL}),
        ("from lib import core", {"lib/core.py": CALL}),
        ("import trace", {"trace.py": CALL}),
        ("import numpy", {"numpy/__init__.py": CALL}),
    ],
    ids=str.split(
        "name attribute star alias text nested chain package relative submodule shadow "
        "shadow-library"
    ),
)
def test_call_is_found_in_the_script_and_in_its_own_modules(reach, script, files):
    found = reach(script, files)
    assert (found.is_named, found.is_never) == (True, False)


@pytest.mark.parametrize(
    ("script", "unknown"),
    [
        ("import importlib", "it imports importlib"),
        ("from importlib import import_module", "it imports importlib"),
        ("import runpy", "it imports runpy"),
        ("exec(open('other.py').read())", "it uses exec"),
        ("__import__('a')", "it uses __import__"),
        ("import torch\ntorch.hub.load('a', 'b')", "it uses hub.load"),
        ("import company_trainer", "it imports company_trainer"),
        ("try:\n    import missing\nexcept ImportError: pass", "it imports missing"),
        ("import pytest", "it imports pytest"),
        (
            "import drivetrain_core.examples.byte_lm",
            "it imports drivetrain_core.examples",
        ),
        ("import drivetrain", "it imports drivetrain"),
        ("this is no Python", "train.py cannot be read"),
    ],
)
def test_what_is_not_known_is_said(reach, script, unknown):
    found = reach(script)
    assert not found.is_named
    assert not found.is_never
    assert found.unknown.startswith(unknown)


@pytest.mark.parametrize(
    "script",
    [
        "import subprocess",
        "import os\nos.execv('a', [])",
        "from os import system",
        "from os import *",
        "import os as system",
        "import asyncio\nasyncio.create_subprocess_exec('a')",
    ],
)
def test_processes_that_a_script_starts_count_where_asked(reach, script):
    assert reach(script).is_never
    assert not reach(script, in_children=True).is_never


def test_module_is_looked_through_like_a_script(reach):
    files = {"lib/__init__.py": "", "lib/job.py": "import torch", "lib/fast.py": CALL}
    options = {"is_module": True}
    assert reach("", files, program="lib.job", **options).is_never
    assert reach("", files, program="lib.fast", **options).is_named
    assert reach(
        "", files, program="drivetrain_elastic.examples.byte_lm", **options
    ).is_named
    assert reach("", files, program="pytest", **options).unknown == "it imports pytest"
    assert reach("", files, program="pdb", **options).unknown == "it imports pdb"


def test_modules_of_ours_that_come_to_it_are_not_known(reach):
    script = "import drivetrain_horovod.on_elastic.torch as hvd"
    assert reach(script).is_never
    found = reach(script, modules=["drivetrain_horovod.on_elastic"])
    assert found.unknown == "it imports drivetrain_horovod.on_elastic.torch"


def test_modules_are_found_where_python_finds_them(reach, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "elsewhere")])
    assert reach("import steps", {"elsewhere/steps.py": CALL}).is_named


def test_modules_that_import_each_other_are_looked_at_once(reach):
    files = {"a.py": "import b", "b.py": "import a\nimport train"}
    assert reach("import a", files).is_never


def test_too_many_files_are_not_looked_through(reach, monkeypatch):
    monkeypatch.setattr("drivetrain_core._command_line.reach._MOST_FILES", 3)
    files = {f"m{i}.py": f"import m{i + 1}" for i in range(9)}
    assert reach("import m0", files).unknown == "it imports more than 3 files"
