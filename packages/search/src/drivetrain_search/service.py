"""The service `plan_search`: trials in processes of their own, and the fastest plan."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import sys
from collections import Counter
from typing import TYPE_CHECKING

from drivetrain_core.services import get_service
from drivetrain_search.job_search import search_once
from drivetrain_search.options import read_options
from drivetrain_search.process.payload import Payload
from drivetrain_search.progress import ConsoleProgress, SilentProgress
from drivetrain_search.run import search

if TYPE_CHECKING:
    from drivetrain_core import Plan
    from drivetrain_core.services import JobStore, SearchProgress, SearchRequest
    from drivetrain_search.report.report import Report


logger = logging.getLogger(__name__)

_NUM_STANDARD = 3
# How often this process has asked for the plan of a program.
_num_asked: Counter[str] = Counter()


class TrialSearch:
    """Finds the fastest plan by trials that are held to the program as written."""

    def search(self, request: SearchRequest) -> tuple[Plan, Report]:
        """Returns the plan, and what was tried.

        In a job whose processes have a store and no process group yet, one of them
        searches; the plan of the others comes with a report that has no trials.

        Raises:
            DistributedError: Another process of the job searches, and has not ended in
                time or has failed.
            PlanError: What is required cannot be used here, or cannot be sent to a trial.
            ProgramError: The program itself does not train.
            SearchError: The program cannot be measured.
        """
        _open_standard_descriptors()
        # Libraries draw from it when they are imported.
        state = random.getstate()
        try:
            return self._search_once(request)
        finally:
            random.setstate(state)

    def _search_once(self, request: SearchRequest) -> tuple[Plan, Report]:
        """Searches, or takes the plan of another process of the job."""
        job_store: JobStore = get_service("job_store")
        with job_store.open() as store:
            if store is None or request.context.world.size > 1:
                return self._search(request)
            key, limit_s = _key(request), request.budget.seconds
            return search_once(store, key, lambda: self._search(request), limit_s)

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
        plan, report = search(payload, written, options, _progress(request))
        if request.progress is True:
            sys.stderr.write(f"{report}\n")
        else:
            logger.info("%s", report)
        return plan, report


def _key(request: SearchRequest) -> str:
    """Returns the name of a search, the same in all processes that run the script."""
    asked = request.partial, request.require, request.budget, request.changes_algorithm
    names = sorted(request.allow or ()), sorted(request.deny)
    facts = request.context.fingerprint(), request.context.loop.optimizer, asked, names
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    _num_asked[digest] += 1
    return f"plan_search/{digest}/{_num_asked[digest]}"


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
