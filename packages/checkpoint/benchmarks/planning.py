"""What it costs to plan a save of many tensors on many ranks, and to commit it.

One process plays the ranks it is asked for: a process group that only counts gives
DTensors their meshes. All ranks plan at the same time, so that what counts is one rank's
own plan and what the first rank's daemon does for all of them. A reader plans by the
same formula, on another number of ranks.
"""

import dataclasses
import functools
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from dcp_planning import planner_cost
from programs import command_of
from workload import timed

from drivetrain_checkpoint._daemon.commit_decision import decide
from drivetrain_checkpoint._daemon.save_queue import SaveQueue
from drivetrain_checkpoint._layout.manifest import RankFile, RankManifest, RootManifest
from drivetrain_checkpoint._layout.tensor_layout import Layout
from drivetrain_checkpoint._rank_group import RankGroup
from drivetrain_checkpoint._restore.read_plan import (
    Wanted,
    coalesced_reads,
    plan_copies,
)
from drivetrain_checkpoint._save.save_plan import EntryTexts, SavePlan, metadata_text
from drivetrain_checkpoint._storage.catalog import written_ranks
from drivetrain_checkpoint._storage.checked_source import saved_image
from drivetrain_checkpoint._storage.posix import PosixStorage
from drivetrain_testing import Row

_ROWS = 4
"""What a rank has of each tensor, in rows of 16 elements."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a save costs beside its bytes.

    `plan_s` is spent by every rank on its own, the first time; `again_s` in each later
    save. `gather_s` and `root_s` are the first rank's daemon's: it is told by all others
    that they have written, looks once whether it is so, and writes the root. `load_s`
    is what one rank of another number of ranks plans before it reads. `rank_bytes`,
    `told_bytes` and `root_bytes` are a rank's manifest, its message, and the root.
    """

    plan_s: float
    again_s: float
    gather_s: float
    root_s: float
    load_s: float
    rank_bytes: int
    told_bytes: int
    root_bytes: int


@functools.cache
def planned(num_tensors, num_ranks):
    """The cost of a save, measured in a process of its own."""
    command = command_of("planning.py", num_tensors, num_ranks)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Cost(**json.loads(done.stdout))


@functools.cache
def planned_by_dcp(num_tensors, num_ranks):
    """What DCP's planner costs the first rank of the same save, extrapolated."""
    return planner_cost(num_tensors, num_ranks // 64).extrapolated(num_ranks)


def planning(cached, most):
    """A save of 1,000 tensors on 1,024 ranks, beside DCP's planner.

    Args:
        cached: Whether it is a save like the one before it.
        most: The bound, of the time of DCP's first rank.
    """

    def measure(quick):
        cost = planned(1_000, 1_024)
        dcp = planned_by_dcp(1_000, 1_024)
        own = cost.again_s if cached else cost.plan_s
        total = own + cost.gather_s + cost.root_s
        return Row(
            figure=(
                f"{total / dcp.coordinator_s:.2%} of {dcp.coordinator_s:.0f} s: "
                f"{total * 1e3:.0f} ms (a rank's plan {own * 1e3:.0f} ms, word of "
                f"all ranks {cost.gather_s * 1e3:.0f} ms, the root "
                f"{cost.root_s * 1e3:.0f} ms of {cost.root_bytes / 1e3:,.0f} kB; "
                f"to load, {cost.load_s * 1e3:.0f} ms)"
            ),
            holds=total <= most * dcp.coordinator_s,
            proven_on="simulation",
            details=dataclasses.asdict(cost),
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


def _plan(tensors, known):
    """What `save` does before it copies, and what it says of the copy."""
    fits = known is not None and known.renew(tensors)
    plan = known if fits else SavePlan(tensors, RankGroup())
    fields = {"save_id": "0" * 16, "step": 1, "saved_at_ns": 1, "tasks": []}
    entries = EntryTexts().text({})
    return plan, metadata_text(fields, entries, plan.layout_text)


def _gathered(folder, plan, num_ranks):
    """How long it takes to be told by all ranks and to see it, and what is said."""
    manifest = RankManifest(
        job="scale",
        step=1,
        save_id="0" * 16,
        rank=0,
        world_size=num_ranks,
        size_bytes=plan.image.size_bytes,
        header_bytes=len(plan.image.header),
        block_bytes=1 << 20,
        crc32c=(0,) * -(-plan.image.size_bytes // (1 << 20)),
    )
    text = manifest.to_bytes()
    name = "step-0000000001-0000000000000000"
    (folder / name).mkdir()
    for rank in range(num_ranks):
        (folder / name / f"rank-{rank:05d}.json").write_bytes(text)
        (folder / name / f"rank-{rank:05d}.safetensors").touch()
    storage = PosixStorage(folder)
    messages = [
        json.dumps(
            {
                "op": "written",
                "save_id": "0" * 16,
                "rank": rank,
                "entry": dataclasses.asdict(RankFile.of(rank, text)),
            }
        )
        for rank in range(num_ranks)
    ]

    def gather():
        queue = SaveQueue()
        for message in messages:
            said = json.loads(message)
            queue.report(said["save_id"], said["rank"], said["entry"])
        known = queue.results.of("0" * 16).reported
        known = {rank: RankFile(**entry) for rank, entry in known.items()}
        about = {"world_size": num_ranks, "error": "", "absent": [], "limit_s": 600.0}
        first = decide(
            reported=known, on_storage=[], quiet_s=0, unseen_s=math.inf, **about
        )
        assert first.action == "look"
        found = written_ranks(storage, name, known, num_ranks)
        then = decide(reported=known, on_storage=found, quiet_s=0, unseen_s=0, **about)
        assert then.action == "commit"
        return found

    times = [timed(gather) for _ in range(3)]
    return statistics.median(times), gather(), len(text), len(messages[-1])


def _load(root, num_tensors, num_readers):
    """Plans what one rank of another number of ranks reads."""
    layout = Layout.from_plain(root)

    @functools.cache
    def slots(rank):
        return {slot.name: slot for slot in saved_image(layout, rank).slots}

    wanted = []
    for entry in layout.tensors:
        step = -(-entry.shape[0] // num_readers)
        block = (((step, step),), *(((0, size),) for size in entry.shape[1:]))
        wanted.append(Wanted(entry, block, None))
    copies = plan_copies(layout, wanted, slots)
    assert len({copy.target for copy in copies}) == num_tensors
    return coalesced_reads(copies)


def _measure(num_tensors, num_ranks):
    """The cost, in this process."""
    tensors = _tensors(num_tensors, num_ranks, num_ranks - 1)
    plan = None

    def run(known):
        nonlocal plan
        plan, _ = _plan(tensors, known)

    first = timed(lambda: run(None))
    again = [timed(lambda: run(plan)) for _ in range(5)]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        gather_s, ranks, rank_bytes, told = _gathered(Path(folder), plan, num_ranks)
    root = RootManifest(
        job="scale",
        step=1,
        save_id="0" * 16,
        saved_at_ns=1,
        world_size=num_ranks,
        entries={},
        layout={},
        ranks=tuple(ranks[rank] for rank in range(num_ranks)),
    )
    plain = f'"entries":{{}},"layout":{plan.layout_text}'.encode()
    roots = [timed(lambda: root.with_plain(plain)) for _ in range(3)]
    layout = json.loads(plan.layout_text)
    loads = [timed(lambda: _load(layout, num_tensors, 768)) for _ in range(3)]
    return Cost(
        plan_s=first,
        again_s=statistics.median(again),
        gather_s=gather_s,
        root_s=statistics.median(roots),
        load_s=statistics.median(loads),
        rank_bytes=rank_bytes,
        told_bytes=told,
        root_bytes=len(root.with_plain(plain)),
    )


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(_measure(*map(int, sys.argv[1:])))))
