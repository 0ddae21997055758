"""Masters and Redis servers for tests, and no settings of the user's."""

import os
import select
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from drivetrain_elastic import Master, ShardClient

# Modules that tests share lie beside them.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in list(os.environ):
        if name.startswith("DRIVETRAIN_ELASTIC_"):
            monkeypatch.delenv(name)


@pytest.fixture
def job(tmp_path):
    """Starts masters of one journal, at one address with one token."""
    masters = []

    def start(**options):
        if masters:
            first = masters[0]
            options = {"address": first.address, "token": first.token, **options}
        masters.append(Master(tmp_path / "job.db", **options))
        return masters[-1]

    yield start
    for master in masters:
        master.stop()


@pytest.fixture
def client(job):
    """Makes shard clients of a master that is started when it is needed."""
    clients, masters = [], []

    def make(name="d", num=20, **options):
        master = options.pop("master", None)
        if master is None:
            if not masters:
                masters.append(job())
            master = masters[0]
        options = {"shard_size": 4, "shuffle": "none", **options}
        clients.append(
            ShardClient(
                name, num, address=master.address, token=master.token, **options
            )
        )
        return clients[-1]

    yield make
    for one in clients:
        one.close()


@pytest.fixture
def agent(job):
    """Makes agents of a master that is started when it is needed."""
    from fake_agent import FakeAgent

    agents, masters = [], []

    def make(*args, master=None, **options):
        if master is None:
            if not masters:
                masters.append(job(node_timeout_s=1.0))
            master = masters[-1]
        agents.append(FakeAgent(master, *args, **options))
        return agents[-1]

    make.masters = masters
    yield make
    for one in agents:
        one.hang_up()


class RedisServer:
    """A Redis server that has each write on its disk before it answers.

    It may be killed, and started again where it was.
    """

    def __init__(self, folder, **settings):
        self.folder = folder
        folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        settings = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": folder,
            "save": "''",
            "appendonly": "yes",
            "appendfsync": "always",
            **settings,
        }
        lines = [f"{name.replace('_', '-')} {text}" for name, text in settings.items()]
        (folder / "redis.conf").write_text("\n".join(lines))
        self.process = None
        self.start()

    def start(self):
        """Starts it, and waits until it answers."""
        self.process = subprocess.Popen(
            ["redis-server", self.folder / "redis.conf"],
            stdout=subprocess.PIPE,
            text=True,
        )
        log = []
        for line in self.process.stdout:
            log.append(line)
            if "Ready to accept connections" in line:
                return
        raise RuntimeError("".join(log))

    def kill(self):
        """Ends it, as a crash would."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def url(self, *options, port=None):
        """Returns the URL of the job `j`."""
        query = "&".join(("job=j", *options))
        return f"redis://127.0.0.1:{port or self.port}/0?{query}"

    def client(self):
        """Returns a client of redis-py's, to look at what is there."""
        import redis

        return redis.Redis(port=self.port)


@pytest.fixture
def redis_server(tmp_path):
    """Starts Redis servers, which end with the test."""
    pytest.importorskip("redis", reason="redis-py is not installed")
    if not shutil.which("redis-server"):
        pytest.skip("no redis-server: apt-get install redis-server")
    servers = []

    def start(**settings):
        servers.append(RedisServer(tmp_path / f"redis-{len(servers)}", **settings))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


class Proxy:
    """Stands between a journal and its server, and cuts connections.

    With `cut` set to "request" or "reply", the next append does not reach the server, or
    its reply does not come back.
    """

    def __init__(self, port):
        self.cut, self.num_cuts = "", 0
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ends, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            ready, _, _ = select.select([self._listener, self._ends], [], [])
            if self._ends in ready:
                return
            client, _ = self._listener.accept()
            with client, socket.create_connection(("127.0.0.1", self._to)) as server:
                self._pass_on(client, server)

    def _pass_on(self, client, server):
        is_lost = False
        while True:
            ready, _, _ = select.select([client, server, self._ends], [], [])
            if self._ends in ready:
                return
            for one, other in ((client, server), (server, client)):
                data = one.recv(1 << 20) if one in ready else None
                if one is client and data and b"\r\nappend\r\n" in data and self.cut:
                    is_lost = self.cut == "reply"
                    self.cut, self.num_cuts = "", self.num_cuts + 1
                    if not is_lost:
                        return
                elif data == b"" or (data and one is server and is_lost):
                    return
                if data:
                    other.sendall(data)

    def close(self):
        self._end.send(b"x")
        self._thread.join()
        for one in (self._listener, self._ends, self._end):
            one.close()


@pytest.fixture
def proxy():
    """Starts proxies of servers, by their port."""
    proxies = []

    def start(port):
        proxies.append(Proxy(port))
        return proxies[-1]

    yield start
    for one in proxies:
        one.close()


def pytest_collection_modifyitems(config, items):
    """Leaves the long forms out unless `-m` asks for them."""
    if "faults" in (config.getoption("markexpr", default="") or ""):
        return
    long = [item for item in items if item.get_closest_marker("faults")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture
def pair(agent):
    """Two nodes with two workers each, of which two are enough."""

    def make(**terms):
        a, b = agent("a", **terms), agent("b", **terms)
        a.ready(0, 1)
        b.ready(0, 1)
        assert a.world() == b.world()
        return a, b, agent.masters[0]

    return make
