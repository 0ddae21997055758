"""Metadata of a save: each rank's proposal before it, the record beside its tensors."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._daemon.pending_save import PERSIST, REPLICATE
from drivetrain_checkpoint._save.agreement import Proposal
from drivetrain_checkpoint._save.save_plan import metadata_text

if TYPE_CHECKING:
    from drivetrain_checkpoint._job_context import JobContext
    from drivetrain_checkpoint._save.rank_memory import Claim
    from drivetrain_checkpoint._save.save_plan import SavePlan

_FIELDS_BYTES = 64 << 10
"""The room for what stands in a record beside entries and layout."""


def metadata_bytes(entries: str, plan: SavePlan) -> int:
    """Returns the room that a record takes; all of it is ASCII, as JSON is here."""
    return len(entries) + len(plan.layout_text) + _FIELDS_BYTES


@dataclass(slots=True)
class PreparedSave:
    """What a rank has made ready for a save, as far as it came.

    Args:
        step: The step, as it was given or as a plain number.
        entries: The plain half of the state, as JSON.
        values: A checksum of the small tensors in plain data, which may differ.
        claim: The daemon's answer when it was asked for memory.
        waited_s: How long that was waited for.
        problem: Why this rank cannot save, if it cannot.
    """

    step: Any
    entries: str = ""
    values: str = ""
    claim: Claim = field(default_factory=dict)
    waited_s: float = 0.0
    problem: Exception | None = None


def make_proposal(
    ready: PreparedSave,
    plan: SavePlan | None,
    under: str,
    after_ns: int,
    *,
    persist: bool,
) -> Proposal:
    """Returns what this rank says before a save.

    Args:
        ready: What it has made ready.
        plan: Where the tensors go; None if there is no plan yet.
        under: The folder in that of the checkpointer.
        after_ns: When the save before was made; this one is newer, whatever the clock
            says.
        persist: Whether storage is to follow.
    """
    layout = plan.digest if plan else ""
    plain = f"{under}\0{ready.entries}\0{layout}\0{ready.values}"
    problem = ready.problem
    saved_at_ns = max(time.time_ns(), after_ns + 1)
    return Proposal(
        ready.step,
        hashlib.sha256(plain.encode()).hexdigest(),
        "" if problem is None else str(problem) or type(problem).__name__,
        "index" in ready.claim,
        ready.claim.get("dropped"),
        # Its order is known by the id alone, where a manifest does not read any more.
        f"{saved_at_ns:016x}",
        saved_at_ns,
        persist,
    )


def save_metadata(
    proposal: Proposal,
    job: JobContext,
    plan: SavePlan,
    entries: str,
    *,
    began_ns: int,
    under: str,
    persist: bool,
) -> bytes:
    """Returns what lies in memory beside the tensors.

    Args:
        proposal: The first rank's, which names the save.
        job: The job.
        plan: Where the tensors go.
        entries: The plain half of the state, as JSON.
        began_ns: When this run began.
        under: The folder in that of the checkpointer.
        persist: Whether storage follows.
    """
    group = job.group
    manifest = {
        "job": job.settings.job,
        "step": proposal.step,
        "save_id": proposal.save_id,
        "rank": group.rank,
        "world_size": group.world_size,
        "size_bytes": plan.image.size_bytes,
        "header_bytes": len(plan.image.header),
        "block_bytes": _native.BLOCK_BYTES,
        "crc32c": [],
    }
    tasks = {PERSIST: persist, REPLICATE: job.num_replicas > 0}
    fields = {
        "save_id": proposal.save_id,
        "step": proposal.step,
        "saved_at_ns": proposal.saved_at_ns,
        "began_ns": began_ns,
        "writer": f"{os.uname().nodename}, daemon {job.rendezvous().nodes.here}",
        "run": job.rendezvous().run,
        "under": under,
        "tasks": [task for task, is_wanted in tasks.items() if is_wanted],
        "manifest": manifest,
    }
    is_first = group.rank == 0
    return metadata_text(
        fields, entries if is_first else "", plan.layout_text if is_first else ""
    )
