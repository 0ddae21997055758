"""Facts that the native library depends on: torch, the compiler, Python, the sources.

torch is not imported, so that a build does not need a device that is not built yet.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from drivetrain_simulated_accelerator._errors import SimulatedAcceleratorBuildError

_HERE = Path(__file__).resolve().parent


def source_folder() -> Path:
    """Returns where the C++ sources lie: in a wheel, or beside `src` in a checkout."""
    for folder in (_HERE / "csrc", _HERE.parents[1] / "csrc"):
        if folder.is_dir():
            return folder
    message = f"the C++ sources are neither in {_HERE} nor beside its src folder"
    raise SimulatedAcceleratorBuildError(message)


def source_digest() -> str:
    """Returns a digest of all sources, headers and of what compiles them."""
    digest = hashlib.sha256()
    folder = source_folder()
    files = sorted([*folder.glob("*.cpp"), *folder.glob("*.hpp")])
    for file in [*files, _HERE / "_build.py"]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def torch_folder() -> Path:
    """Returns the folder of the installed torch."""
    module = sys.modules.get("torch")
    if module is not None and module.__file__ is not None:
        return Path(module.__file__).parent
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        message = "torch is not installed: run `pip install torch`"
        raise SimulatedAcceleratorBuildError(message)
    return Path(spec.origin).parent


def torch_version() -> str:
    """Returns the version of the installed torch, with its local part."""
    text = (torch_folder() / "version.py").read_text()
    match = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    if match is None:
        message = f"{torch_folder() / 'version.py'} does not tell torch's version"
        raise SimulatedAcceleratorBuildError(message)
    return match[1]


def python_abi() -> str:
    """Returns the tag of Python's binary interface: `cpython-311-x86_64-linux-gnu`."""
    return str(sysconfig.get_config_var("SOABI"))


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler.

    Args:
        path: The program.
        version: The first line of what it says of itself.
    """

    path: str
    version: str


def find_compiler() -> Compiler:
    """Returns the compiler: that of `$CXX`, or g++.

    Raises:
        SimulatedAcceleratorBuildError: There is none, or it does not run.
    """
    named = os.environ.get("CXX", "")
    path = shutil.which(named or "g++")
    if path is None:
        message = (
            f"there is no C++ compiler {named or 'g++'!r}: install one of C++20 "
            "(`apt-get install g++`), or name it in $CXX"
        )
        raise SimulatedAcceleratorBuildError(message)
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        message = f"the compiler {path} does not run: {error}"
        raise SimulatedAcceleratorBuildError(message) from error
    return Compiler(path, next(iter(said.stdout.splitlines()), ""))
