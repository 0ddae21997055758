"""The service `plan_search`: trials in processes of their own, and the fastest plan."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from drivetrain_search.options import read_options
from drivetrain_search.process.payload import Payload
from drivetrain_search.progress import ConsoleProgress, SilentProgress
from drivetrain_search.run import search

if TYPE_CHECKING:
    from drivetrain_core import Plan
    from drivetrain_core.services import SearchProgress, SearchRequest
    from drivetrain_search.report.report import Report


_NUM_STANDARD = 3


class TrialSearch:
    """Finds the fastest plan by trials that are held to the program as written."""

    def search(self, request: SearchRequest) -> tuple[Plan, Report]:
        """Returns the plan, and what was tried.

        Raises:
            PlanError: What is required cannot be used here, or cannot be sent to a trial.
            ProgramError: The program itself does not train.
            SearchError: The program cannot be measured.
        """
        _open_standard_descriptors()
        # Libraries draw from it when they are imported.
        state = random.getstate()
        try:
            return self._search(request)
        finally:
            random.setstate(state)

    def _search(self, request: SearchRequest) -> tuple[Plan, Report]:
        payload = Payload(
            program=request.program,
            context=request.context,
            guard_batches=request.batches,
            device=request.device,
            script=request.script,
            must_replay=request.must_replay,
        )
        options = read_options(
            request.context,
            partial=request.partial,
            require=request.require,
            allow=request.allow,
            deny=request.deny,
            budget=request.budget,
            objective=request.objective,
            changes_algorithm=request.changes_algorithm,
            cache=request.cache,
        )
        written = tuple(request.written)
        return search(payload, written, options, _progress(request))


def _open_standard_descriptors() -> None:
    """Opens what is closed of input, output and errors, lest a pipe to a trial takes it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < _NUM_STANDARD:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _progress(request: SearchRequest) -> SearchProgress:
    given = request.progress
    if isinstance(given, bool):
        return ConsoleProgress(request.budget) if given else SilentProgress()
    return given
