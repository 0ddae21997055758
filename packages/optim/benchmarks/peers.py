"""The LAMB of other libraries, where they are installed."""

import importlib
import importlib.machinery
import importlib.util
import sys
import types

__all__ = ["load_peers"]


def load_peers():
    """The LAMB class of each peer that is installed, by name."""
    found = {"timm": _timm_lamb(), "pytorch_optimizer": _pytorch_optimizer_lamb()}
    return {name: kind for name, kind in found.items() if kind is not None}


def _timm_lamb():
    spec = importlib.util.find_spec("timm")
    if spec is None:
        return None
    # Importing timm itself needs torchvision; its optimizers alone do not.
    for name, folder in (("timm", ""), ("timm.optim", "/optim")):
        package = types.ModuleType(name)
        package.__path__ = [spec.submodule_search_locations[0] + folder]
        sys.modules[name] = package
    try:
        return importlib.import_module("timm.optim.lamb").Lamb
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] == "timm"]:
            del sys.modules[name]


def _pytorch_optimizer_lamb():
    if importlib.util.find_spec("pytorch_optimizer") is None:
        return None
    return importlib.import_module("pytorch_optimizer").Lamb
