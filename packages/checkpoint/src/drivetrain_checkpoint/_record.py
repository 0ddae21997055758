"""What is said of a save: to the other ranks before it, and to the daemon with it."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import TYPE_CHECKING

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._agree import Proposal
from drivetrain_checkpoint._save_plan import record_text
from drivetrain_checkpoint._ticket import PERSIST, REPLICATE

if TYPE_CHECKING:
    from drivetrain_checkpoint._rank_memory import Claim
    from drivetrain_checkpoint._save_plan import SavePlan
    from drivetrain_checkpoint._team import Team

__all__ = ["proposal_of", "record_bytes", "record_of"]

_FIELDS_BYTES = 64 << 10
"""The room for what stands in a record beside entries and layout."""


def record_bytes(entries: str, plan: SavePlan) -> int:
    """Returns the room that a record takes; all of it is ASCII, as JSON is here."""
    return len(entries) + len(plan.layout_text) + _FIELDS_BYTES


def proposal_of(
    step: int,
    entries: str,
    plan: SavePlan | None,
    claim: Claim,
    problem: Exception | None,
    after_ns: int = 0,
) -> Proposal:
    """Returns what this rank says before a save.

    Args:
        step: The step.
        entries: The plain half of the state, as JSON.
        plan: Where the tensors go; None if there is no plan yet.
        claim: The daemon's answer when it was asked for memory.
        problem: Why this rank cannot save, if it cannot.
        after_ns: When the save before was made; this one is newer, whatever the clock
            says.
    """
    layout = plan.digest if plan else ""
    said = "" if problem is None else str(problem) or type(problem).__name__
    return Proposal(
        step,
        hashlib.sha256(f"{entries}\0{layout}".encode()).hexdigest(),
        said,
        "index" in claim,
        claim.get("dropped"),
        secrets.token_hex(8),
        max(time.time_ns(), after_ns + 1),
    )


def record_of(
    proposal: Proposal,
    team: Team,
    plan: SavePlan,
    entries: str,
    *,
    job: str,
    run: str,
    under: str,
    persist: bool,
    replicate: bool,
) -> bytes:
    """Returns what lies in memory beside the tensors.

    Args:
        proposal: The first rank's, which names the save.
        team: The ranks.
        plan: Where the tensors go.
        entries: The plain half of the state, as JSON.
        job: The job's name.
        run: What this run of the job is called.
        under: The folder in that of the checkpointer.
        persist: Whether storage follows.
        replicate: Whether replicas follow.
    """
    manifest = {
        "job": job,
        "step": proposal.step,
        "save_id": proposal.save_id,
        "rank": team.rank,
        "world_size": team.world_size,
        "size_bytes": plan.image.size_bytes,
        "header_bytes": len(plan.image.header),
        "block_bytes": _native.BLOCK_BYTES,
        "crc32c": [],
    }
    tasks = {PERSIST: persist, REPLICATE: replicate}
    fields = {
        "save_id": proposal.save_id,
        "step": proposal.step,
        "saved_at_ns": proposal.saved_at_ns,
        "run": run,
        "under": under,
        "tasks": [task for task, is_wanted in tasks.items() if is_wanted],
        "manifest": manifest,
    }
    is_first = team.rank == 0
    return record_text(
        fields, entries if is_first else "", plan.layout_text if is_first else ""
    )
