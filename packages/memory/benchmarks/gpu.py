"""What only a GPU can show: calls, kernels, contents and training on stitched memory.

Each is a process of its own, since an allocator is chosen once for a process.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from drivetrain_memory import validate
from drivetrain_testing import Row

HERE = Path(__file__).parent
WITHOUT = Row(figure="-", holds=None, proven_on="-", needs_gpu=True)


def child(program, *arguments, environment=None):
    """What a program of this folder prints as JSON; None when it failed."""
    import os

    command = [sys.executable, str(HERE / program), *map(str, arguments)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (environment or {}),
    )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    sys.stderr.write(done.stderr[-2000:])
    return None


def name():
    return torch.cuda.get_device_name().lower().replace(" ", "-")


def driver_calls(quick):
    if not torch.cuda.is_available():
        return WITHOUT
    found = child("gpu_calls.py", "--quick" if quick else "--full")
    if found is None:
        return Row(figure="the program failed", holds=False, proven_on=name())
    return Row(
        figure=", ".join(f"{call} {us:.1f} us" for call, us in found["idle"].items()),
        holds=True,
        proven_on=name(),
        details=found,
    )


def kernels(quick):
    if not torch.cuda.is_available():
        return WITHOUT
    found = child("gpu_kernels.py", 5 if quick else 20)
    if found is None:
        return Row(figure="the program failed", holds=False, proven_on=name())
    return Row(
        figure=", ".join(f"{k} {v:.3f}x" for k, v in found["ratios"].items()),
        holds=min(found["ratios"].values()) >= 0.99,
        proven_on=name(),
        details=found,
    )


def contents(quick):
    if not torch.cuda.is_available():
        return WITHOUT
    found = child("gpu_contents.py", 2_000 if quick else 50_000)
    if found is None:
        return Row(figure="the program failed", holds=False, proven_on=name())
    return Row(
        figure=f"{found['wrong']} wrong in {found['operations']:,} operations on "
        f"{found['streams']} streams; {found['stolen']:,} chunks changed streams",
        holds=found["wrong"] == 0 and found["stolen"] > 0,
        proven_on=name(),
        details=found,
    )


def tested(*names):
    """What tests of a GPU show, each in a process of its own."""
    if not torch.cuda.is_available():
        return WITHOUT
    file = str(HERE.parent / "tests" / "test_gpu.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    done = subprocess.run(
        [*command, "-k", " or ".join(names)],
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout.strip().splitlines()
    return Row(
        figure=said[-1] if said else done.stderr[-200:],
        holds=done.returncode == 0,
        proven_on=name(),
    )


def sleep(quick):
    del quick
    return tested("test_memory_sleeps_and_graphs_hold_after_it")


def sharing(quick):
    del quick
    return tested("test_tensor_is_shared_with_another_process")


def pools(quick):
    del quick
    return tested("test_pool_has_memory_of_its_own")


def trees(quick):
    del quick
    return tested(
        "test_trees_of_graphs_are_refused", "test_memory_of_a_graph_is_private"
    )


CONFIGURATIONS = ("full", "varlen", "lora", "side-streams")
ALLOCATORS = {
    "native": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    # The smallest segments that torch takes.
    "expandable-11": {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,large_segment_size_mb:11"
    },
    "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "ours": {},
}


def training(quick):
    names = ("native", "expandable", "ours")
    return train(8 if quick else 20, CONFIGURATIONS[:2], names)


def training_others(quick):
    configurations = CONFIGURATIONS[2:3] if quick else CONFIGURATIONS[2:]
    return train(8 if quick else 20, configurations, tuple(ALLOCATORS))


def train(steps, configurations, names):
    """Trains by allocators, each in a process of ten seconds and more, twice."""
    if not torch.cuda.is_available():
        return WITHOUT
    allocators = {name: ALLOCATORS[name] for name in names}
    speed, tight, same = {}, {}, {}
    details = {}
    for configuration in configurations:
        found = {
            allocator: child(
                "gpu_training.py", configuration, allocator, steps, environment=setting
            )
            for allocator, setting in allocators.items()
        }
        details[configuration] = found
        if found["native"] is None or found["ours"] is None:
            return Row(figure=f"{configuration} failed", holds=False, proven_on=name())
        speed[configuration] = found["native"]["step_ms"] / found["ours"]["step_ms"]
        same[configuration] = found["native"]["losses"] == found["ours"]["losses"]
        limit = 1.03 * found["ours"]["live_bytes"]
        short = {
            allocator: child(
                "gpu_training.py",
                configuration,
                allocator,
                steps,
                "--limit",
                int(limit),
                environment=setting,
            )
            for allocator, setting in allocators.items()
        }
        details[f"{configuration} at 1.03x"] = short
        tight[configuration] = bool(short["ours"] and short["ours"]["finished"])
    words = [
        f"{c} {speed[c]:.3f}x, {'same' if same[c] else 'OTHER'} loss, "
        f"{'finishes' if tight[c] else 'FAILS'}"
        for c in configurations
    ]
    return Row(
        figure="; ".join(words),
        holds=min(speed.values()) >= 0.99
        and all(tight.values())
        and all(same.values()),
        proven_on=name(),
        details=details,
    )


def models(quick):
    if not torch.cuda.is_available():
        return WITHOUT
    details = {}
    with tempfile.TemporaryDirectory() as folder:
        for allocator in ("native", "expandable"):
            for configuration in CONFIGURATIONS[: 1 if quick else None]:
                path = Path(folder) / f"{allocator}-{configuration}.pickle"
                ran = child(
                    "gpu_training.py",
                    configuration,
                    allocator,
                    3,
                    "--snapshot",
                    path,
                    environment=ALLOCATORS[allocator],
                )
                if ran is None:
                    return Row(
                        figure=f"{path.stem} failed", holds=False, proven_on=name()
                    )
                details[path.stem] = dataclasses.asdict(validate(path))
    return Row(
        figure=", ".join(
            f"{run} {one['same']} of {one['recorded']}" for run, one in details.items()
        ),
        holds=not any(one["difference"] for one in details.values()),
        proven_on=name(),
        details=details,
    )
