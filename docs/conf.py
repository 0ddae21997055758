"""How Sphinx builds the documentation; a warning is an error."""

from __future__ import annotations

import builtins
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

PACKAGES = [
    tomllib.loads(file.read_text())["project"]
    for file in sorted(ROOT.glob("packages/*/pyproject.toml"))
]

project = "Drivetrain"
author = "The Drivetrain authors"
project_copyright = f"2026, {author}"
release = next(p["version"] for p in PACKAGES if p["name"] == "drivetrain-core")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "command_help",
    "public_names",
]
public_modules = [p["name"].replace("-", "_") for p in PACKAGES]
public_modules += [
    f"drivetrain_core.{name}"
    for name in (
        "accelerators",
        "commands",
        "extending",
        "lazy",
        "machine_limits",
        "native_library",
        "numerics.guard",
        "numerics.observation",
        "numerics.observe",
        "processes",
        "services",
        "strict_json",
        "tables",
    )
]
public_modules += [
    f"drivetrain_comm.{name}"
    for name in (
        "compiler",
        "groups",
        "nccl",
        "stores",
    )
]
public_modules += [f"drivetrain_fabric.{n}" for n in ("adviser", "network", "topology")]
public_modules += [f"drivetrain_parallel.{name}" for name in ("cost", "overlap")]
public_modules += ["drivetrain_cluster_double"]
public_modules += [
    f"drivetrain_cloud.{n}" for n in ("cost", "goodput", "notices", "spot")
]
public_modules += [
    f"drivetrain_horovod.{n}" for n in ("on_comm", "on_elastic", "on_elastic.elastic")
]
public_modules += [
    f"drivetrain_health.{n}" for n in ("checks", "diagnosis", "failures", "faults")
]
public_modules += [
    f"drivetrain_elastic.{n}"
    for n in (
        "extending",
        "journal",
        "testing",
    )
]
exclude_patterns = ["_build", "reports", "tutorials/quickstart/*"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Two packages have a class of one name, such as `Choice`: where an annotation can be
# read as text only, a reference to it finds the first of them.
suppress_warnings = ["ref.python"]

# Docstrings write code between single backticks, as Markdown does.
default_role = "code"
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Other projects' pages are not fetched, so that a build needs no network: names of
# torch, of the standard library and of the language lead nowhere.
STDLIB = "|".join(name for name in sys.stdlib_module_names if name[0] != "_")
BUILTINS = "|".join(name for name in dir(builtins) if name[0] != "_")
nitpick_ignore_regex = [
    (
        r"py:.*",
        rf"(?:{STDLIB}|np|numpy|torch|nn|dist|grpc|psutil|pb|accelerate|lightning|transformers)\..*",
    ),
    (r"py:.*", rf"{BUILTINS}|\.\.\."),
    # Messages of the protocol, which are made when they are first used.
    (r"py:class", r"None\.\w+"),
]

html_theme = "furo"
html_baseurl = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
    "drivetrain"
]["address"]
html_title = "Drivetrain"
# Pages that a search wrote, as they are.
html_extra_path = ["reports"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
# The examples in docstrings run with the tests of their package.
doctest_test_doctest_blocks = ""
