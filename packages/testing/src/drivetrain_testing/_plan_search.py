"""The contract of a search for plans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch

from drivetrain_core import Numerics
from drivetrain_core.budget import Budget
from drivetrain_core.extending import complete, numerics_of, require_usable
from drivetrain_core.objective import throughput
from drivetrain_core.services.plan_search import PlanSearch, SearchRequest
from drivetrain_testing._clauses import require
from drivetrain_testing._optimization import toy_context, toy_program

if TYPE_CHECKING:
    from typing import Any


def check_plan_search(service: PlanSearch, *, seconds: float = 60.0) -> None:
    """Checks that a search finds plans that can be used, and keeps to what it was told.

    It searches twice for a small program, on the CPU.

    Args:
        service: What is checked.
        seconds: The budget of each search.

    Raises:
        AssertionError: A clause of the contract is broken.
    """
    require(isinstance(service, PlanSearch), "a search has the method search")
    program = toy_program()
    context = toy_context(program)
    batches = tuple(program.data)

    def request(**fields: Any) -> SearchRequest:
        given: dict[str, Any] = {
            "program": program,
            "context": context,
            "written": complete((), context),
            "batches": batches,
            "device": "cpu",
            "script": None,
            "must_replay": False,
            "partial": None,
            "require": (),
            "allow": ("micro_batch", "optimizer_impl"),
            "deny": (),
            "changes_algorithm": False,
            "budget": Budget(seconds=seconds, trials=2),
            "objective": throughput,
            "cache": False,
            "progress": False,
        }
        return SearchRequest(**given | fields)

    threads = torch.get_num_threads()
    plan, report = service.search(request())
    require_usable(plan.choices, context)
    require(
        {choice.name for choice in plan.choices} <= {"micro_batch", "optimizer_impl"},
        "a plan holds only what is allowed",
    )
    require(
        numerics_of(plan.choices) < Numerics.CHANGES_ALGORITHM,
        "a search changes no algorithm unless it is told that it may",
    )
    json.dumps(report.to_dict())
    require(report.table() is not None, "a report has a table")
    plan, _ = service.search(request(require=[("micro_batch", 2)], allow=()))
    require(
        [str(choice) for choice in plan.choices] == ["micro_batch(num=2)"],
        "every plan holds what is required",
    )
    require(
        torch.get_num_threads() == threads, "a search leaves this process as it was"
    )
