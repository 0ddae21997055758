"""Whatever a server answers, calls fail with a reason, and an operator lives on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile

import pytest

from drivetrain_cloud.kubernetes.api_client import ApiClient, ApiError
from drivetrain_cloud.kubernetes.cluster_access import ClusterAccess
from drivetrain_cloud.kubernetes.leader_election import LeaderElection
from drivetrain_cloud.kubernetes.operator import Operator
from drivetrain_core import ProgramError

pytestmark = pytest.mark.extra

EMPTY = {"metadata": {"resourceVersion": "5"}, "items": []}
BOOKMARK = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "6"}}}
OLD = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}


class Server:
    """Answers every call as it is told; of one event loop.

    Args:
        answer: Returns status, headers and body of what a method and a path get.
    """

    def __init__(self, answer):
        self.answer, self.calls, self.tokens, self.tasks = answer, [], [], set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *args):
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.sleep(0)  # connections are closed in one more turn

    async def serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        try:
            await self.reply(reader, writer)
        finally:
            writer.close()

    async def reply(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split("\r\n")[0].split(" ")
            self.calls.append((method, path))
            self.tokens += [
                line.split(" ")[-1]
                for line in head.split("\r\n")
                if line.startswith("Authorization")
            ]
            status, headers, body = self.answer(method, path)
            if body is None:
                await asyncio.sleep(60)
            lines = [f"HTTP/1.1 {status} so", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()


def said(*items, status=200, **headers):
    return status, headers, "".join(json.dumps(one) + "\n" for one in items).encode()


def watched(*events):
    return lambda _, path: said(*events) if "watch=" in path else said(EMPTY)


ANSWERS = {
    "html": lambda *_: (200, {}, b"<html>please log in</html>"),
    "null": lambda *_: said(None),
    "list": lambda *_: said([]),
    "nothing": lambda *_: said({}),
    "no metadata": lambda *_: said({"metadata": None, "items": None}),
    "junk": lambda *_: said({**EMPTY, "items": [1, None]}),
    "no names": lambda *_: said({**EMPTY, "items": [{}]}),
    "no end": lambda *_: said({"metadata": {"continue": "x"}, "items": []}),
    "elsewhere": lambda *_: (302, {"Location": "/x"}, b""),
    "refused": lambda *_: said({"message": "who?"}, status=401),
    "forbidden": lambda *_: said({"message": "no"}, status=403),
    "broken": lambda *_: said({"message": "no"}, status=500),
    "watch ends": watched(),
    "watch says only versions": watched(BOOKMARK),
    "watch is too old": watched(BOOKMARK, OLD),
    "watch of junk": watched([1]),
    "watch of nothing": watched({}),
    "watch is cut": lambda _, path: (
        (200, {}, b'{"type": "ADD') if "watch=" in path else said(EMPTY)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ANSWERS)
def test_operator_lives_on_and_asks_seldom_whatever_the_server_answers(what):
    async def story():
        async with (
            Server(ANSWERS[what]) as server,
            ApiClient(ClusterAccess(server=server.url)) as client,
        ):
            task = asyncio.create_task(Operator(client).run())
            done, _ = await asyncio.wait({task}, timeout=1.0)
            task.cancel()
            await asyncio.wait({task})
            assert not done
            assert not any(path == "/x" for _, path in server.calls)
            return len(server.calls)

    # Four kinds, each listed and watched after 0, 0.1, 0.3 and 0.7 s.
    assert asyncio.run(story()) <= 40


def call(answer, **user):
    async def story():
        async with Server(answer) as server, ApiClient(access(server, user)) as client:
            for _ in range(2):
                with contextlib.suppress(ApiError):
                    await client.get("Pod", "a", "b")
            return server.tokens, client.server_time()

    return asyncio.run(story())


def access(server, user):
    """Returns the access of a kubeconfig, whose user is given."""
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "a", "user": "u"}}],
        "clusters": [{"name": "a", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": user}],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
        json.dump(config, file)
    return ClusterAccess(file.name)


def test_token_that_is_refused_is_read_again(tmp_path):
    path = tmp_path / "token"
    path.write_text("old")

    def answer(*_):
        path.write_text("new")
        return said({"message": "who?"}, status=401)

    assert call(answer, tokenFile=str(path))[0] == ["old", "new"]


def plugin(folder, says):
    """Returns a user whom a program proves, as those of clouds do."""
    path = folder / "prove"
    path.write_text(f"#!{sys.executable}\nprint({json.dumps(json.dumps(says))})")
    path.chmod(0o755)
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": str(path), "args": []}}


def test_program_of_a_cloud_proves_who_calls(tmp_path):
    says = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "of-the-cloud"},
    }
    user = plugin(tmp_path, says)
    assert call(lambda *_: said({}), **user)[0] == ["of-the-cloud"] * 2


@pytest.mark.parametrize(
    "user", [{"tokenFile": "/nowhere"}, {"exec": {"command": "no"}}]
)
def test_user_that_cannot_be_read_is_said(user):
    with pytest.raises(ProgramError, match="does not say how the cluster is called"):
        call(lambda *_: said({}), **user)


def test_date_that_is_none_is_not_taken():
    call(lambda *_: said({}, Date="soon"))
    call(lambda *_: said({}, Date="1 Jan 999999999999 00:00:00"))


def test_wait_that_a_server_asks_for_has_an_end():
    async def story():
        wait = {"Retry-After": "999999999"}
        async with (
            Server(lambda *_: said({}, status=418, **wait)) as server,
            ApiClient(ClusterAccess(server=server.url)) as client,
        ):
            await client.get("Pod", "a", "b")

    with pytest.raises(ApiError) as error:
        asyncio.run(story())
    assert error.value.retry_after_s == 60.0


def test_leader_ends_at_once_when_another_one_has_the_lease():
    lease = {"metadata": {"name": "l", "namespace": "n"}, "spec": None}

    async def story():
        async with (
            Server(lambda *_: said(lease)) as server,
            ApiClient(ClusterAccess(server=server.url)) as client,
        ):
            election = LeaderElection(
                client, namespace="n", identity="one", retry_s=0.01
            )
            await election.acquire()
            holding = asyncio.create_task(election.hold())
            await asyncio.sleep(0.05)
            assert not holding.done()
            lease["spec"] = {"holderIdentity": "two", "renewTime": "now"}
            await asyncio.wait_for(holding, 5.0)
            await election.release()

    asyncio.run(story())
