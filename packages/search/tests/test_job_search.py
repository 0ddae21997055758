"""One search a job: who searches, who waits, and what becomes of a search that ends badly."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from drivetrain_core import Code, DistributedError, Plan, PlanError
from drivetrain_core.budget import Budget
from drivetrain_core.extending import read_strategy
from drivetrain_search import TrialSearch, job_search, service
from drivetrain_search.job_search import search_once
from drivetrain_search.report.report import Report

LONG_S = 60.0


def found(num):
    """A search that has found micro-batches of a number, and its report."""
    plan = read_strategy([("micro_batch", num)])
    report = Report(
        trials=(), chosen=plan.choices, seconds=1.0, stopped="done", plan=plan
    )
    return plan, report


def never():
    message = "nothing was to be searched"
    raise AssertionError(message)


@pytest.fixture
def store():
    return dist.HashStore()


@pytest.fixture
def waits(monkeypatch):
    """Is released by each process that begins to wait for another one."""
    monkeypatch.setattr(job_search, "_BEAT_S", 0.01)
    monkeypatch.setattr(job_search, "_LOOK_S", 0.05)
    begun = threading.Semaphore(0)
    await_end = job_search._await_end

    def note(*arguments):
        begun.release()
        await_end(*arguments)

    monkeypatch.setattr(job_search, "_await_end", note)
    return begun


class Searching:
    """A search in a thread, which has begun and goes on until it is told to end."""

    def __init__(self, store, key="k"):
        self.begun, self.end = threading.Event(), threading.Event()
        self.outcome = None
        self._pool = ThreadPoolExecutor(4)
        self.done = self._pool.submit(search_once, store, key, self.search, LONG_S)
        assert self.begun.wait(LONG_S)

    def search(self):
        self.begun.set()
        assert self.end.wait(LONG_S)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return found(self.outcome)

    def beside(self, *arguments):
        return self._pool.submit(search_once, *arguments)

    def finish(self, outcome):
        self.outcome = outcome
        self.end.set()


def test_one_searches_and_all_get_its_plan(store, waits):
    first = Searching(store)
    others = [first.beside(store, "k", never, LONG_S) for _ in range(3)]
    for _ in others:
        assert waits.acquire(timeout=LONG_S)
    first.finish(2)
    plan, report = first.done.result(LONG_S)
    assert report.stopped == "done"
    for other in others:
        same, none = other.result(LONG_S)
        assert same.to_dict() == plan.to_dict()
        assert none.chosen == plan.choices
        assert (none.trials, none.stopped) == (
            (),
            job_search._THERE,
        )
        assert none.table().row_count == 0


def test_plan_is_kept_for_those_that_come_later(store):
    plan, _ = search_once(store, "k", lambda: found(4), LONG_S)
    again, _ = search_once(store, "k", never, LONG_S)
    assert again.to_dict() == plan.to_dict()


def test_other_searches_are_other_plans(store):
    assert search_once(store, "a", lambda: found(2), LONG_S)[0].choices
    plan, _ = search_once(store, "b", lambda: found(4), LONG_S)
    assert str(plan) == "micro_batch(num=4)"


def test_claim_of_a_process_that_is_dead_goes_to_another(store, waits, monkeypatch):
    monkeypatch.setattr(job_search, "_LEASE_S", 0.2)
    store.set("k", json.dumps({"claim": "dead"}))
    plan, _ = search_once(store, "k", lambda: found(2), LONG_S)
    assert waits.acquire(blocking=False)
    assert str(plan) == "micro_batch(num=2)"


CLAIMS = """
import sys, time
from torch.distributed import TCPStore
from drivetrain_search.job_search import search_once

store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)

def search():
    print("searches", flush=True)
    time.sleep(600)

search_once(store, "k", search, 600.0)
"""


@pytest.mark.slow
def test_claim_of_a_process_that_was_killed_goes_to_another(monkeypatch):
    monkeypatch.setattr(job_search, "_LEASE_S", 2.0)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with subprocess.Popen(
        [sys.executable, "-c", CLAIMS, str(store.port)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "searches\n"
        with ThreadPoolExecutor(1) as pool:
            plan = pool.submit(search_once, store, "k", lambda: found(2), LONG_S)
            process.send_signal(signal.SIGKILL)
            assert str(plan.result(LONG_S)[0]) == "micro_batch(num=2)"


def test_search_that_is_interrupted_goes_to_another_at_once(store, waits):
    # Long before its lease is over.
    first = Searching(store)
    other = first.beside(store, "k", lambda: found(4), LONG_S)
    assert waits.acquire(timeout=LONG_S)
    first.finish(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        first.done.result(LONG_S)
    assert str(other.result(LONG_S)[0]) == "micro_batch(num=4)"


REFUSED = PlanError(Code.CONFLICT, "compile", because="it cannot", fix="leave it")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (REFUSED, PlanError, "compile: on another process of this job: it cannot"),
        (
            OSError("no room"),
            DistributedError,
            "another process of this job failed with OSError: no room",
        ),
    ],
)
def test_error_of_a_search_is_that_of_all_who_wait(store, waits, error, kind, said):
    first = Searching(store)
    others = [first.beside(store, "k", never, LONG_S) for _ in range(2)]
    for _ in others:
        assert waits.acquire(timeout=LONG_S)
    first.finish(error)
    with pytest.raises(type(error)):
        first.done.result(LONG_S)
    for other in others:
        with pytest.raises(kind, match=said):
            other.result(LONG_S)


def test_who_comes_after_an_error_searches_anew(store):
    def fail():
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        search_once(store, "k", fail, LONG_S)
    plan, _ = search_once(store, "k", lambda: found(2), LONG_S)
    assert search_once(store, "k", never, LONG_S)[0].to_dict() == plan.to_dict()


def test_search_is_not_waited_for_without_end(store, waits, monkeypatch):
    monkeypatch.setattr(job_search, "_SLACK_S", 0.1)
    first = Searching(store)
    with pytest.raises(DistributedError, match=r"waited 0 s .* longer budget="):
        search_once(store, "k", never, 0.1)
    first.finish(2)
    assert str(first.done.result(LONG_S)[0]) == "micro_batch(num=2)"


def test_process_that_was_taken_for_dead_takes_the_plan_of_the_other(store):
    plan, _ = found(4)

    def search():
        # It was stopped for so long that another one has claimed the search, and ended.
        store.set("k", json.dumps({"plan": plan.to_dict()}))
        return found(2)

    taken, report = search_once(store, "k", search, LONG_S)
    assert taken.to_dict() == plan.to_dict()
    assert report.chosen == plan.choices


def request(context, **changes):
    fields = {
        "context": context,
        "partial": None,
        "require": (),
        "allow": None,
        "deny": (),
        "budget": Budget(),
        "changes_algorithm": False,
    }
    return SimpleNamespace(**fields | changes)


@pytest.fixture
def new_process(monkeypatch):
    """Lets this process be one that has asked for no plan yet."""

    def begin():
        monkeypatch.setattr(service, "_num_asked", type(service._num_asked)())

    begin()
    return begin


def test_key_is_that_of_the_program_the_options_and_the_number(context, new_process):
    names = [f"name{number}" for number in range(20)]
    one = service._key(request(context, allow=set(names), deny=frozenset(names)))
    again = service._key(request(context, allow=names, deny=names))
    assert one.rsplit("/", 1) == [again.rsplit("/", 1)[0], "1"]
    assert again.endswith("/2")
    new_process()
    assert service._key(request(context, allow=names[::-1], deny=names)) == one
    others = [
        request(context, deny=["compile"]),
        request(context, allow=["compile"]),
        request(context, budget=Budget(seconds=1.0)),
        request(context, require=["compile"]),
        request(context, changes_algorithm=True),
    ]
    assert len({service._key(other) for other in [request(context), *others]}) == 6


@pytest.mark.parametrize("has_store", [True, False])
def test_service_asks_the_store_of_the_job(
    context, store, monkeypatch, new_process, has_store
):
    job_store = SimpleNamespace(
        open=lambda: contextlib.nullcontext(store if has_store else None)
    )
    monkeypatch.setattr(service, "get_service", {"job_store": job_store}.get)
    searched = []
    monkeypatch.setattr(
        TrialSearch, "_search", lambda _, asked: searched.append(asked) or found(2)
    )
    for _ in range(2):
        plan, _ = TrialSearch().search(request(context))
        assert isinstance(plan, Plan)
        new_process()
    assert len(searched) == (1 if has_store else 2)
