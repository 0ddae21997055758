"""A thousand objects with eight pods each come and go, and a watch sees all of it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter

import pytest
from double_samples import GROUP, PODS, WIDGETS, definition, pod, widget
from drivetrain_cluster_double import ClusterDouble

pytestmark = [pytest.mark.extra, pytest.mark.faults]

NUM_OBJECTS, NUM_PODS = 1000, 8


class Caller:
    """Calls the API, with some calls at a time."""

    def __init__(self, cluster, session):
        self.cluster, self.session = cluster, session
        self.seen = Counter()
        self.free = asyncio.Semaphore(16)

    async def call(self, method, path, **options):
        url = self.cluster.url + path
        async with self.free, self.session.request(method, url, **options) as reply:
            text = await reply.read()
            assert reply.status < 300, text
            return json.loads(text)

    async def watch(self, path):
        url = f"{self.cluster.url}{path}?watch=true"
        async with self.session.get(url) as reply:
            async for line in reply.content:
                event = json.loads(line)
                self.seen[event["object"]["kind"], event["type"]] += 1

    async def make(self, number):
        item = await self.call("POST", WIDGETS, json=widget(f"w{number}"))
        owner = {key: item[key] for key in ("apiVersion", "kind")}
        owner |= {key: item["metadata"][key] for key in ("name", "uid")}
        for at in range(NUM_PODS):
            one = pod(f"w{number}-{at}", cpu="1")
            one["metadata"] |= {
                "labels": {"widget": f"w{number}"},
                "ownerReferences": [{**owner, "controller": True}],
            }
            await self.call("POST", PODS, json=one)
        query = f"labelSelector=widget%3Dw{number}"
        found = await self.call("GET", f"{PODS}?{query}")
        assert len(found["items"]) == NUM_PODS
        await self.call(
            "PATCH",
            f"{WIDGETS}/w{number}/status",
            json={"status": {"replicas": NUM_PODS}},
            headers={"Content-Type": "application/merge-patch+json"},
        )


async def live(cluster):
    import aiohttp

    context = ssl.create_default_context(cafile=str(cluster.ca_file))
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    headers = {"Authorization": f"Bearer {cluster.token}"}
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout
    ) as session:
        caller = Caller(cluster, session)
        paths = (f"/apis/{GROUP}/v1/widgets", "/api/v1/pods")
        watches = [asyncio.create_task(caller.watch(path)) for path in paths]
        await asyncio.gather(*(caller.make(n) for n in range(NUM_OBJECTS)))
        running = lambda p: p["status"]["phase"] == "Running"
        await until(lambda: all(map(running, cluster.list("Pod"))))
        await asyncio.gather(
            *(caller.call("DELETE", f"{WIDGETS}/w{n}") for n in range(NUM_OBJECTS))
        )
        await until(lambda: not cluster.list("Pod"))
        await until(lambda: caller.seen["Pod", "DELETED"] == NUM_OBJECTS * NUM_PODS)
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        return caller.seen


async def until(condition):
    while not condition():
        await asyncio.sleep(0.1)


def test_a_thousand_objects_come_and_go():
    with ClusterDouble(nodes=0, run="simulated") as cluster:
        cluster.apply(definition())
        for _ in range(100):
            cluster.add_node(cpu="90")
        seen = asyncio.run(live(cluster))
    assert seen["Widget", "ADDED"] == seen["Widget", "DELETED"] == NUM_OBJECTS
    assert seen["Pod", "ADDED"] == seen["Pod", "DELETED"] == NUM_OBJECTS * NUM_PODS
    assert seen["Widget", "MODIFIED"] >= NUM_OBJECTS
