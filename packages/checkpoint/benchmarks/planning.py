"""What it costs to plan a save of many tensors on many ranks, and to commit it.

One process plays the ranks it is asked for: a process group that only counts gives
DTensors their meshes. All ranks plan at the same time, so that what counts is one rank's
own plan and what the first rank does for all of them.
"""

import functools
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from workload import timed

from drivetrain_checkpoint import _posix
from drivetrain_checkpoint._manifest import RankManifest, RootManifest
from drivetrain_checkpoint._pieces import pieces_of
from drivetrain_checkpoint._record import EntryTexts, PlannedImage, record_text
from drivetrain_core.testing import Row

_ROWS = 4
"""What a rank has of each tensor, in rows of 16 elements."""


@dataclass(frozen=True)
class Cost:
    """What a save costs beside its bytes.

    `plan_s` is spent by every rank on its own, the first time; `again_s` in each later
    save. `gather_s` and `root_s` are the first rank's: it reads what the others wrote,
    and writes the root. `rank_bytes` and `root_bytes` are their manifests.
    """

    plan_s: float
    again_s: float
    gather_s: float
    root_s: float
    rank_bytes: int
    root_bytes: int


@functools.cache
def planned(num_tensors, num_ranks):
    """The cost of a save, measured in a process of its own."""
    command = [sys.executable, __file__, str(num_tensors), str(num_ranks)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Cost(**json.loads(done.stdout))


def planning(cached, most_s):
    """A save of 1,000 tensors on 1,024 ranks.

    Args:
        cached: Whether it is a save like the one before it.
        most_s: The bound.
    """

    def measure(quick):
        cost = planned(1_000, 1_024)
        own = cost.again_s if cached else cost.plan_s
        total = own + cost.gather_s + cost.root_s
        return Row(
            figure=(
                f"{total * 1e3:.0f} ms (a rank's plan {own * 1e3:.0f} ms, the "
                f"manifests of all {cost.gather_s * 1e3:.0f} ms, the root "
                f"{cost.root_s * 1e3:.0f} ms of {cost.root_bytes / 1e3:,.0f} kB)"
            ),
            holds=total <= most_s,
            proven_on="simulation",
            details={
                "rank_manifest_bytes": cost.rank_bytes,
                "root_manifest_bytes": cost.root_bytes,
            },
        )

    return measure


def _tensors(num_tensors, num_ranks, rank):
    """A rank's tensors, each sharded over all ranks."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=num_ranks, store=FakeStore())
    mesh = init_device_mesh("cpu", (num_ranks,))
    return {
        f"model.layers.{i}.attention.weight": DTensor.from_local(
            torch.zeros(_ROWS, 16), mesh, [Shard(0)], run_check=False
        )
        for i in range(num_tensors)
    }


def _plan(tensors, rank, num_ranks, known):
    """What `save` does before it copies, and what it says of the copy."""
    pieces = pieces_of(tensors, rank, num_ranks)
    plan = known if known is not None and known.fits(pieces) else PlannedImage(pieces)
    entries = EntryTexts().text({})
    fields = {"save_id": "0" * 16, "step": 1, "saved_at_ns": 1}
    head = {
        "job": "scale",
        "step": 1,
        "save_id": "0" * 16,
        "rank": rank,
        "world_size": num_ranks,
        "size_bytes": plan.image.size_bytes,
        "block_bytes": 1 << 24,
        "crc32c": [],
    }
    record = record_text(fields, head, plan.parts_text, entries if not rank else None)
    return plan, json.loads(record)["manifest"]


def _gathered(folder, manifest, num_ranks):
    """How long the first rank reads the manifests of all, and what it has then."""
    text = RankManifest.from_fields(manifest, "rank").to_bytes()
    for rank in range(num_ranks):
        (folder / f"rank-{rank:05d}.json").write_bytes(text)
    times = [
        timed(functools.partial(_posix.find_rank_manifests, folder, num_ranks))
        for _ in range(3)
    ]
    return statistics.median(times), _posix.find_rank_manifests(folder, num_ranks), text


def _measure(num_tensors, num_ranks):
    """The cost, in this process."""
    tensors = _tensors(num_tensors, num_ranks, num_ranks - 1)
    plan, manifest = None, {}

    def run(known):
        nonlocal plan, manifest
        plan, manifest = _plan(tensors, num_ranks - 1, num_ranks, known)

    first = timed(lambda: run(None))
    again = [timed(lambda: run(plan)) for _ in range(5)]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        gather_s, ranks, text = _gathered(Path(folder), manifest, num_ranks)
    root = RootManifest(
        job="scale",
        step=1,
        save_id="0" * 16,
        saved_at_ns=1,
        world_size=num_ranks,
        entries={},
        ranks=tuple(ranks),
    )
    roots = [timed(root.to_bytes) for _ in range(3)]
    return Cost(
        plan_s=first,
        again_s=statistics.median(again),
        gather_s=gather_s,
        root_s=statistics.median(roots),
        rank_bytes=len(text),
        root_bytes=len(root.to_bytes()),
    )


if __name__ == "__main__":
    import dataclasses

    print(json.dumps(dataclasses.asdict(_measure(*map(int, sys.argv[1:])))))
