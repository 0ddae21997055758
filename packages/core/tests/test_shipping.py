"""Which modules another process can import, and how the others travel."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import types

import cloudpickle
import pytest

from drivetrain_core._scripts.shipping import by_value, is_importable


@pytest.fixture
def load(tmp_path):
    """Loads a module from a file, under the import path or not."""
    before, modules = list(sys.path), set(sys.modules)

    def make(name, code="value = 1\n", *, importable):
        file = tmp_path / f"{name.replace('.', '_')}.py"
        file.write_text(code)
        if importable:
            sys.path.append(str(tmp_path))
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    yield make
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    for module in list(cloudpickle.list_registry_pickle_by_value()):
        assert module not in {"by_path", "under_path"}


@pytest.mark.parametrize("name", ["json", "json.decoder", "sys", "torch.nn", "_io"])
def test_installed_modules_are_importable(name):
    assert is_importable(importlib.import_module(name))


def test_this_package_is_importable():
    assert is_importable(importlib.import_module("drivetrain_core._scripts.shipping"))


def test_main_is_not_importable():
    assert not is_importable(types.ModuleType("__main__"))


def test_module_under_the_import_path_is_importable(load):
    assert is_importable(load("under_path", importable=True))


@pytest.mark.parametrize("name", ["by_path", "no_such_package.by_path"])
def test_module_loaded_by_its_path_is_not_importable(load, name):
    assert not is_importable(load(name, importable=False))


def test_module_that_hides_another_of_its_name_is_not_importable(load):
    # A fresh process would import the standard library's own.
    real = sys.modules.pop("colorsys", None)
    try:
        assert not is_importable(load("colorsys", importable=False))
    finally:
        if real is not None:
            sys.modules["colorsys"] = real


FUNCTION = "FACTOR = 3\ndef times(x):\n    return FACTOR * x\n"


def in_a_fresh_process(pickled):
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(4))"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickled, capture_output=True, check=False
    )
    return done.stdout.decode().strip(), done.stderr.decode()


def test_by_value_ships_what_could_not_be_imported(load):
    module = load("by_path", FUNCTION, importable=False)
    plain = cloudpickle.dumps(module.times)
    with by_value("by_path", "by_path"):
        whole = cloudpickle.dumps(module.times)
    assert in_a_fresh_process(whole)[0] == "12"
    assert "No module named 'by_path'" in in_a_fresh_process(plain)[1]
    assert cloudpickle.dumps(module.times) == plain


def test_by_value_leaves_importable_modules_alone(load):
    module = load("under_path", FUNCTION, importable=True)
    with by_value("under_path", "no_such_module", "__main__", "json"):
        assert cloudpickle.list_registry_pickle_by_value() == set()
        assert b"under_path" in cloudpickle.dumps(module.times)


def test_by_value_puts_back_even_after_an_error(load):
    load("by_path", importable=False)

    def fails():
        with by_value("by_path"):
            assert cloudpickle.list_registry_pickle_by_value() == {"by_path"}
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_by_value_keeps_what_the_user_registered(load):
    module = load("by_path", importable=False)
    cloudpickle.register_pickle_by_value(module)
    try:
        with by_value("by_path"):
            pass
        assert cloudpickle.list_registry_pickle_by_value() == {"by_path"}
    finally:
        cloudpickle.unregister_pickle_by_value(module)
