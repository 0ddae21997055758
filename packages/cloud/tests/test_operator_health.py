"""A cluster asks the operator whether it lives, and nobody writes who leads no more."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime as dt
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("kubernetes_asyncio")

import aiohttp
from test_api_client import EMPTY, Server, said

from drivetrain_cloud.kubernetes.api_client import ApiClient, ApiError
from drivetrain_cloud.kubernetes.carry_out import Carrier
from drivetrain_cloud.kubernetes.cluster_access import ClusterAccess
from drivetrain_cloud.kubernetes.control_loop import ControlLoop
from drivetrain_cloud.kubernetes.health_server import HealthServer
from drivetrain_cloud.kubernetes.informer import Informer
from drivetrain_cloud.kubernetes.leader_election import LeaderElection
from drivetrain_cloud.kubernetes.operator_actions import (
    CreateObject,
    SetStatus,
    TellEvent,
    delete_object,
)
from drivetrain_cloud.kubernetes.serve import serve

pytestmark = pytest.mark.extra

JOB = {
    "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "4"},
    "status": {"phase": "Running"},
}


class Looks(ControlLoop):
    """Looks at jobs as it is told."""

    def __init__(self, client, look):
        super().__init__(client, "ElasticJob", num_workers=1)
        note = lambda item: self.queue.add(("n", item["metadata"]["name"]))
        self._informers["ElasticJob"] = Informer(client, "ElasticJob", note)
        self.look = look

    async def _reconcile(self, key):
        await self.look(key)
        return math.inf


def asked(answer, look, paths, *, leads=True, after=None):
    """Returns what a server of health says to each path, once something has happened.

    Without an answer no API server is there.
    """

    async def story():
        async with contextlib.AsyncExitStack() as stack:
            url = "http://127.0.0.1:1"  # nobody is there
            if answer is not None:
                url = (await stack.enter_async_context(Server(answer))).url
            client = ApiClient(ClusterAccess(server=url))
            await stack.enter_async_context(client)
            loop = Looks(client, look)
            task = asyncio.create_task(loop.run())
            async with (
                HealthServer(0, client, [loop], lambda: leads) as health,
                aiohttp.ClientSession() as session,
            ):
                if after is not None:
                    await after(loop)
                found = []
                for path in paths:
                    url = f"http://127.0.0.1:{health.port}{path}"
                    async with session.get(url) as reply:
                        found.append((reply.status, await reply.text()))
            task.cancel()
            await asyncio.wait({task})
            return found

    return asyncio.run(story())


async def nothing(key):
    pass


def listed(method, path):
    if "watch=" in path:
        return 200, {}, None
    return said({**EMPTY, "items": [JOB]})


def test_metrics_count_jobs_looks_and_calls():
    async def looked_at(loop):
        while not loop.num_looks["success"]:
            await asyncio.sleep(0.01)

    paths = ["/metrics", "/healthz", "/readyz"]
    (status, text), *others = asked(listed, nothing, paths, after=looked_at)
    assert status == 200
    for row in (
        "drivetrain_operator_leader 1.0",
        'drivetrain_operator_objects{kind="ElasticJob",phase="Running"} 1.0',
        'drivetrain_operator_reconciles_total{kind="ElasticJob",outcome="success"} 1.0',
        'drivetrain_operator_queue_length{kind="ElasticJob"} 0.0',
        'drivetrain_operator_api_calls_total{method="GET",status="200"} 1.0',
    ):
        assert row in text.splitlines()
    assert others == [(200, "ok"), (200, "ok")]


def test_operator_that_hangs_on_an_object_is_not_alive():
    async def hang(key):
        await asyncio.sleep(60)

    async def long_after(loop):
        while not loop.queue.busy_s():
            await asyncio.sleep(0.01)
        loop.queue._busy = dict.fromkeys(loop.queue._busy, -1e9)

    ((status, text),) = asked(listed, hang, ["/healthz"], after=long_after)
    assert status == 503
    assert text.startswith("one object is worked on for ")


@pytest.mark.parametrize(("leads", "status"), [(True, 503), (False, 200)])
def test_leader_is_ready_once_it_has_seen_all_objects(leads, status):
    ((found, text),) = asked(None, nothing, ["/readyz"], leads=leads)
    assert found == status
    assert ("no list yet of ElasticJob" in text) == leads


def test_whoever_leads_no_more_writes_nothing():
    lease = {"metadata": {"name": "l", "namespace": "n"}, "spec": {}}
    now = [0.0]

    async def story():
        async with (
            Server(lambda *_: said(lease)) as server,
            ApiClient(ClusterAccess(server=server.url)) as client,
        ):
            election = LeaderElection(
                client, namespace="n", identity="one", clock=lambda: now[0]
            )
            client.lead_s = election.left_s
            with pytest.raises(ApiError, match="another operator leads by now"):
                await client.create("Pod", JOB)
            await election.acquire()
            await client.create("Pod", JOB)
            # It was stopped for longer than a lease lasts, and goes on in mid-work.
            now[0] = 11.0
            with pytest.raises(ApiError, match="another operator leads by now"):
                await client.create("Pod", JOB)
            await client.get("Pod", "n", "a")
            return [call for call in server.calls if call[0] == "POST"]

    assert len(asyncio.run(story())) == 1


class OneLease:
    """An API server that has a lease and nothing else; each call takes its time."""

    def __init__(self, now, waits):
        self.now, self.waits, self.lease, self.version = now, waits, None, 0

    def server_time(self):
        return dt.datetime.fromtimestamp(self.now[0], dt.UTC)

    async def get(self, *_):
        self.now[0] += self.waits.pop()
        if self.lease is None:
            raise ApiError("no", status=404)
        found = copy.deepcopy(self.lease)
        self.now[0] += self.waits.pop()
        return found

    async def create(self, _, item):
        return await self.update(_, {**item, "version": 0})

    async def update(self, _, item):
        self.now[0] += self.waits.pop()
        if item.get("version", 0) != self.version:
            raise ApiError("not that one", status=409)
        self.version += 1
        self.lease = {**copy.deepcopy(item), "version": self.version}
        self.now[0] += self.waits.pop()
        return self.lease


WAITS = st.sampled_from([0.0, 0.1, 1.0, 4.0, 11.0, 30.0])


@settings(max_examples=1_000, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), *[WAITS] * 6), max_size=30))
def test_two_operators_never_may_write_at_once_however_long_one_pauses(turns):
    now, waits = [0.0], []
    server = OneLease(now, waits)
    two = [
        LeaderElection(server, namespace="n", identity=str(i), clock=lambda: now[0])
        for i in range(2)
    ]
    for who, pause_s, *call_waits in turns:
        now[0] += pause_s
        waits[:] = call_waits
        asyncio.run(two[who]._try())
        assert sum(one.left_s() > 0 for one in two) <= 1


def test_operator_that_cannot_know_who_leads_does_not_work():
    class Broken(LeaderElection):
        async def acquire(self):
            raise ValueError("a lease that nobody can read")

    async def story():
        server, did = OneLease([0.0], []), []
        election = Broken(server, namespace="n", identity="one")

        async def work():
            did.append("work")

        with pytest.raises(ValueError, match="nobody can read"):
            await serve(work, election, asyncio.Event())
        return did

    assert asyncio.run(story()) == []


def test_pod_that_is_refused_hinders_no_other_from_going_and_is_said():
    job = {
        **JOB,
        "kind": "ElasticJob",
        "apiVersion": "drivetrain.dev/v1alpha1",
        "spec": {},
    }

    def answer(method, _):
        if method == "POST":
            words = {"message": "exceeded quota", "reason": "Forbidden"}
            return said(words, status=403)
        return said({**job, "metadata": {**job["metadata"], "name": "p"}})

    new = CreateObject(kind="Pod", item={"metadata": {"name": "p", "namespace": "n"}})
    actions = [
        *(new, new, delete_object("Pod", job, "it has left")),
        SetStatus(status={"phase": "Running", "conditions": []}),
        TellEvent(reason="WorkerLeaves", note="it leaves"),
    ]

    async def story():
        async with (
            Server(answer) as server,
            ApiClient(ClusterAccess(server=server.url)) as client,
        ):
            told = []
            update = client.update

            async def see(kind, item, sub=""):
                told.append(item["status"])
                return await update(kind, item, sub)

            client.update = see
            with pytest.raises(ApiError, match="exceeded quota"):
                await Carrier(client, {}, None).carry_out(job, actions, None)
            return [method for method, _ in server.calls], told

    methods, (status,) = asyncio.run(story())
    # The second pod would be refused as the first one was; what is told waits.
    assert methods == ["POST", "DELETE", "PUT"]
    (row,) = status["conditions"]
    assert (row["type"], row["status"]) == ("Reconciled", "False")
    assert (status["phase"], row["reason"]) == ("Running", "Forbidden")
