"""The names by which scripts that were written for Horovod import what is here."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from drivetrain_core import ProgramError
from drivetrain_horovod import on_elastic
from drivetrain_horovod.on_elastic import _errors, elastic

_NAMES: dict[str, ModuleType | None] = {
    "horovod": None,
    "horovod.common": None,
    "horovod.common.exceptions": _errors,
    "horovod.torch": on_elastic,
    "horovod.torch.elastic": elastic,
    "horovod.torch.elastic.sampler": elastic,
    "horovod.torch.elastic.state": elastic,
}


def put_names() -> None:
    """Lets this process import `horovod.torch`, and find this package by it.

    Raises:
        ProgramError: Horovod itself is installed, and would be hidden.
    """
    if sys.modules.get("horovod.torch") is on_elastic:
        return
    if "horovod" in sys.modules or importlib.util.find_spec("horovod") is not None:
        message = (
            "horovod is installed here, and would be hidden: uninstall it, or import "
            "drivetrain_horovod.on_elastic in the script"
        )
        raise ProgramError(message)
    for name, known in _NAMES.items():
        module = known or ModuleType(name, "Stands for a package of Horovod.")
        if known is None:
            module.__path__ = []
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent and not hasattr(sys.modules[parent], last):
            setattr(sys.modules[parent], last, module)
