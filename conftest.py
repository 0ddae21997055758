"""What the tests of every package share: a test without its hardware is skipped."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("hypothesis"):
    from hypothesis import settings

    # A slow machine is no failure.
    settings.register_profile("drivetrain", deadline=None)
    settings.load_profile("drivetrain")

# GPU kernels import Triton, which the packages do without; a `*` crosses folders.
kernels = ["packages/*/src/*/_triton_*.py"]
collect_ignore_glob = [] if find_spec("triton") else kernels
# An adapter imports the library that it is named after.
collect_ignore_glob += [
    f"packages/*/src/*/adapters/{name}.py"
    for name in ("accelerate", "lightning", "transformers")
    if not find_spec(name)
]


# What torch warns of on a GPU alone, once for a process, is no fault of a test.
TORCH_WARNS = (
    "default::UserWarning:torch",
    "default:Synchronization debug mode is a prototype:UserWarning",
    "default:TensorFloat32 tensor cores for float32:UserWarning",
)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leaves out what is marked `faults` unless `-m` asks for it; skips GPU tests.

    Tests marked `gpu` and `multigpu` are skipped where there are too few GPUs.
    """
    if "faults" not in (config.getoption("markexpr", default="") or ""):
        long = [item for item in items if item.get_closest_marker("faults")]
        if long:
            config.hook.pytest_deselected(items=long)
            items[:] = [item for item in items if item not in long]
    needs = {"gpu": 1, "multigpu": 2}
    marked = [
        (i, n) for i in items for m, n in needs.items() if i.get_closest_marker(m)
    ]
    if not marked:
        return
    import torch

    there = torch.cuda.device_count()
    for item, count in marked:
        item.add_marker(pytest.mark.filterwarnings(*TORCH_WARNS))
        if there < count:
            reason = f"needs {count} GPU(s), this machine has {there}"
            item.add_marker(pytest.mark.skip(reason=reason))
