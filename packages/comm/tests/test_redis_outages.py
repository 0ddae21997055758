"""A Redis that goes away, forgets or refuses ends in an error that says so."""

import logging
import threading
import time
from datetime import timedelta

import pytest
from redis_server import RedisServer, has_redis_server

from drivetrain_comm.stores import RedisStore
from drivetrain_core import DistributedError
from drivetrain_testing import RankError, run_ranks

redis = pytest.importorskip("redis", reason="redis-py is not installed")
pytestmark = [
    pytest.mark.extra,
    pytest.mark.skipif(
        not has_redis_server(), reason="no redis-server: apt-get install redis-server"
    ),
]


def test_redis_store_survives_a_short_outage(server, opened):
    store = opened(server.url("outage"), retry=timedelta(seconds=30))
    store.set("key", "1")
    server.freeze()
    threading.Timer(0.3, server.thaw).start()
    assert store.get("key") == b"1"


def test_redis_store_killed_in_the_middle_of_a_wait(server, opened):
    store = opened(server.url("killed"), rank=3)
    store.set("key", "1")
    errors = []

    def wait():
        try:
            store.wait(["slow"], timedelta(minutes=5))
        except DistributedError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    look = redis.Redis(port=server.port)
    while not look.info("clients")["blocked_clients"]:
        time.sleep(0.01)
    look.close()
    server.kill()
    thread.join(60)
    assert not thread.is_alive()
    assert f"127.0.0.1:{server.port}" in errors[0]
    assert "'slow'" in errors[0]
    assert "rank 3" in errors[0]


def test_redis_store_says_that_the_server_lost_its_memory(server, opened):
    store = opened(server.url("lost"), retry=timedelta(seconds=10))
    store.set("key", "1")
    server.kill()
    server.start()
    with pytest.raises(DistributedError, match="has forgotten the job's keys"):
        store.get("key")


@pytest.mark.slow
def test_redis_store_is_renewed_after_another_server_has_lost_its_memory(
    server, opened
):
    with RedisServer() as other:
        lost = opened(other.url("lost"), ttl=timedelta(seconds=1))
        kept = opened(server.url("kept"), ttl=timedelta(seconds=1))
        lost.set("key", "1")
        kept.set("key", "1")
        other.kill()
        other.start()
        look = redis.Redis(port=server.port)
        # Longer than the server remembers by itself.
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            assert look.keys("*")
            time.sleep(0.1)
        look.close()
        assert kept.get("key") == b"1"


def test_redis_store_that_was_never_there(opened):
    with RedisServer() as server:
        url = server.url("absent")
    with pytest.raises(DistributedError, match=r"has not answered for 0\.5 s"):
        opened(url).set("key", "1")


@pytest.mark.parametrize("given", ["wrong-secret", ""])
def test_redis_store_with_a_wrong_password_never_shows_one(opened, caplog, given):
    caplog.set_level(logging.DEBUG)
    with RedisServer(password="right-secret") as server:
        store = opened(server.url("job", given))
        started = time.monotonic()
        with pytest.raises(DistributedError, match="user and password") as caught:
            store.set("key", "1")
        # It is not tried again: that would not help.
        assert time.monotonic() - started < 30
        good = opened(server.url("job"))
        good.set("key", "1")
        assert good.get("key") == b"1"
    shown = (
        f"{caught.value!r} {caught.value.__cause__!r} {store.address!r} {caplog.text}"
    )
    assert "secret" not in shown


def _wait_for_ever(url):
    RedisStore(url, retry=timedelta(seconds=0.5)).get("never")


@pytest.mark.slow
def test_ranks_end_when_redis_is_killed(server):
    look = redis.Redis(port=server.port)

    def kill():
        while look.info("clients")["blocked_clients"] < 2:
            time.sleep(0.05)
        look.close()
        server.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RankError, match="has not answered"):
        run_ranks(_wait_for_ever, 2, server.url("ranks"), process_group=False)
    killer.join()
