"""Build of the native library: its cache, and compilers that are missing or fail."""

import json
import threading

import pytest
from drivetrain_simulated_accelerator import (
    SimulatedAcceleratorBuildError,
    _build,
    build,
    is_built,
)
from drivetrain_simulated_accelerator.__main__ import main
from drivetrain_simulated_accelerator._toolchain import source_folder, torch_version

pytestmark = pytest.mark.simulated_accelerator

# It says its version, writes what it is asked for, and keeps a list of its calls.
SCRIPT = """#!/bin/sh
if [ "$1" = --version ]; then echo "fake $FAKE_VERSION"; exit 0; fi
echo "$*" >> "$FAKE_CALLS"
[ -n "$FAKE_FAILS" ] && { echo "this is wrong" >&2; exit 3; }
while [ $# -gt 1 ]; do
  [ "$1" = -o ] && echo made > "$2"
  shift
done
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """A fake compiler and an empty cache; returns the file of the compiler's calls."""
    compiler = tmp_path / "fake-g++"
    compiler.write_text(SCRIPT)
    compiler.chmod(0o755)
    calls = tmp_path / "calls"
    calls.touch()
    for name, value in {
        "CXX": str(compiler),
        "FAKE_VERSION": "1",
        "FAKE_CALLS": str(calls),
        _build.CACHE_VARIABLE: str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    return calls


def num_calls(calls):
    return len(calls.read_text().splitlines())


# Each source, and the link.
NUM_CALLS = len(list(source_folder().glob("*.cpp"))) + 1


def test_build_is_cached(calls):
    assert not is_built()
    library = build()
    assert library.read_text() == "made\n"
    assert num_calls(calls) == NUM_CALLS
    assert is_built()
    assert build() == library
    assert num_calls(calls) == NUM_CALLS
    facts = json.loads((library.parent / "facts.json").read_text())
    assert facts["torch"] == torch_version()
    assert facts["compiler"] == "fake 1"
    assert _build.versions_built() == [torch_version()]
    assert not list(library.parent.glob("*.o"))


def test_another_compiler_builds_again_and_either_library_will_do(calls, monkeypatch):
    first = build()
    monkeypatch.setenv("FAKE_VERSION", "2")
    assert is_built()
    assert build() != first
    assert num_calls(calls) == 2 * NUM_CALLS
    # A machine that runs programs needs no compiler.
    monkeypatch.setenv("CXX", "there-is-none")
    assert is_built()


def test_other_sources_are_not_built(calls, monkeypatch):
    build()
    monkeypatch.setattr(_build, "source_digest", lambda: "another")
    assert not is_built()
    monkeypatch.undo()


def test_builds_at_once_are_one(calls):
    libraries = []
    threads = [
        threading.Thread(target=lambda: libraries.append(build())) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(libraries)) == 1
    assert len(libraries) == 3
    assert num_calls(calls) == NUM_CALLS


def test_compiler_that_fails_is_told_and_leaves_nothing(calls, monkeypatch):
    monkeypatch.setenv("FAKE_FAILS", "1")
    with pytest.raises(SimulatedAcceleratorBuildError, match=r"(?s)with 3.*is wrong"):
        build()
    assert not is_built()
    assert [path.name for path in _build.cache_folder().iterdir()] == ["lock"]


def test_compiler_that_is_missing_is_told(calls, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "there-is-none")
    with pytest.raises(SimulatedAcceleratorBuildError, match="apt-get install g"):
        build()
    assert main(["build"]) == 1
    assert "there is no C++ compiler 'there-is-none'" in capsys.readouterr().err


def test_command_builds_and_tells(calls, capsys):
    assert main(["info"]) == 0
    assert "not built" in capsys.readouterr().out
    assert main(["build"]) == 0
    assert "ready after" in capsys.readouterr().out
    assert main(["info"]) == 0
    assert "_native.so" in capsys.readouterr().out
