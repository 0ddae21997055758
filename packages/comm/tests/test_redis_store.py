"""What RedisStore does beyond torch's contract of a store."""

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from redis_server import has_redis_server

from drivetrain_comm.stores import RedisStore, StoreTimeoutError, join, register_redis
from drivetrain_comm.stores._address import parse_address
from drivetrain_core import DistributedError, MissingLibraryError
from drivetrain_testing import run_ranks

redis = pytest.importorskip("redis", reason="redis-py is not installed")
pytestmark = [
    pytest.mark.extra,
    pytest.mark.skipif(
        not has_redis_server(), reason="no redis-server: apt-get install redis-server"
    ),
]

SHORT = timedelta(milliseconds=100)
LONG = timedelta(seconds=30)


def test_redis_store_names_the_missing_keys(shared_server, opened):
    store = opened(shared_server.url("missing"))
    store.set("b", "1")
    with pytest.raises(StoreTimeoutError, match=r"100ms, keys: a, c$"):
        store.wait(["a", "b", "c", "a"], SHORT)
    with pytest.raises(StoreTimeoutError, match=r"keys: k0, .*k7 and 12 more$"):
        store.wait([f"k{n}" for n in range(20)], SHORT)


def test_redis_store_lists_its_keys(shared_server, opened):
    store = opened(shared_server.url("list"))
    names = ["", "a b", "{brace}", "nul\0nul", "ü€😀"]
    store.multi_set(names, ["1"] * len(names))
    assert sorted(store.list_keys()) == sorted(names)


def test_redis_store_takes_more_keys_than_one_command(shared_server, opened):
    store = opened(shared_server.url("many"))
    keys = [f"key/{n}" for n in range(3000)]
    done = []
    waiter = threading.Thread(target=lambda: (store.wait(keys, LONG), done.append(1)))
    waiter.start()
    store.multi_set(keys, [str(n) for n in range(3000)])
    waiter.join(60)
    assert done
    assert store.multi_get(keys)[2999] == b"2999"
    assert store.check(keys)


def test_redis_store_wakes_all_who_wait_under_contention(shared_server, opened):
    """Writers race with waiters on many keys: a wake-up that is lost would time out."""
    store = opened(shared_server.url("contention"), timeout=LONG)
    num_keys, num_waiters = 150, 6
    failures = []

    def wait_for_all(order):
        try:
            for n in order:
                assert store.get(f"key/{n}") == b"%d" % n
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    forward = range(num_keys)
    orders = [forward if w % 2 else forward[::-1] for w in range(num_waiters)]
    threads = [threading.Thread(target=wait_for_all, args=[order]) for order in orders]
    for thread in threads:
        thread.start()
    for n in forward:
        store.set(f"key/{n}", str(n))
    for thread in threads:
        thread.join(60)
    assert not failures
    leftover = store.client.run("all", "KEYS", "drivetrain:{contention}:w*")
    assert leftover == []


def test_redis_store_counts_each_addition_of_many_threads_once(shared_server, opened):
    store = opened(shared_server.url("sum"))

    def add():
        for _ in range(50):
            store.add("n", 1)

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.add("n", 0) == 400


def test_redis_store_does_not_add_twice_when_the_reply_is_lost(shared_server, opened):
    store = opened(shared_server.url("once"), retry=timedelta(seconds=10))
    store.add("n", 1)
    run, lost = store.client._command, []

    def lose_one_reply(*arguments):
        reply = run(*arguments)
        if not lost and arguments[0] in {"EVALSHA", "EVAL"}:
            lost.append(arguments)
            raise redis.ConnectionError("the connection broke after the command")
        return reply

    store.client._command = lose_one_reply
    assert store.add("n", 5) == 6
    assert lost
    lost.clear()
    store.append("text", "ab")
    assert lost
    assert store.get("text") == b"ab"


def test_redis_store_of_two_jobs_on_one_server(shared_server, opened):
    one, other = opened(shared_server.url("one")), opened(shared_server.url("other"))
    one.set("key", "1")
    assert not other.check(["key"])
    other.set("key", "2")
    one.forget()
    assert other.get("key") == b"2"
    assert opened(shared_server.url("one")).num_keys() == 0


@pytest.mark.slow
def test_redis_store_leaves_nothing_for_longer_than_its_time(server, opened):
    store = opened(server.url("brief"), ttl=timedelta(seconds=1))
    store.set("key", "1")
    with pytest.raises(StoreTimeoutError):
        store.wait(["never"], SHORT)
    store.add("n", 1)
    look = redis.Redis(port=server.port)
    names = [n for n in look.keys("*") if b":w" not in n]
    assert names
    assert all(0 < look.pttl(name) <= 1000 for name in look.keys("*"))
    # For as long as the store lives, its keys are renewed.
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        assert look.exists("drivetrain:{brief}")
        time.sleep(0.1)
    store.close()
    while look.keys("*"):
        assert time.monotonic() < deadline + 30
        time.sleep(0.05)
    look.close()


def test_redis_store_connects_late_and_once(server, opened):
    store = opened(server.url("late"))
    look = redis.Redis(port=server.port)
    before = look.info("clients")["connected_clients"]
    assert before == 1
    for n in range(20):
        store.set("key", str(n))
        store.get("key")
    assert look.info("clients")["connected_clients"] == 2
    look.close()


def _set_in_a_fork(store):
    pid = os.fork()
    if pid == 0:
        store.set("child", "1")
        store.add("n", 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded")
def test_redis_store_after_a_fork(shared_server, opened):
    store = opened(shared_server.url("fork"))
    store.set("parent", "1")
    store.add("n", 1)
    _set_in_a_fork(store)
    assert store.multi_get(["child", "parent"]) == [b"1", b"1"]
    assert store.add("n", 1) == 3


def test_redis_store_refuses_to_add_to_text(shared_server, opened):
    store = opened(shared_server.url("text"))
    store.set("key", "seven")
    with pytest.raises(DistributedError, match=r"asked of 'key': .*not an integer"):
        store.add("key", 1)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("tcp://host/job", "scheme 'tcp'"),
        ("redis://host", "no job"),
        ("redis:///job", "no host"),
        ("redis://host:99999/job", "port"),
    ],
)
def test_address_says_what_is_wrong(url, what):
    with pytest.raises(DistributedError, match=what):
        parse_address(url)


def test_address_with_tls_and_options():
    address = parse_address("rediss://u:p@[::1]:7/a%20b/c?ssl_ca_certs=f&rank=1")
    assert (address.host, address.port, address.job) == ("::1", 7, "a b/c")
    assert address.given == {"rank": "1"}
    assert address.server_url == "rediss://u:p@[::1]:7?ssl_ca_certs=f"
    assert str(address) == "rediss://[::1]:7/a b/c"


def test_redis_store_names_the_missing_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(
        MissingLibraryError, match=r"pip install 'drivetrain-comm\[redis\]'"
    ):
        RedisStore("redis://host/job")


def test_join_parts_the_starts_of_a_job(shared_server, opened):
    """Each start has keys of its own, also after one of which only a part had come."""
    url = shared_server.url("joined")

    def start(world_size, ranks):
        stores = [opened(url) for _ in ranks]
        threads = [
            threading.Thread(target=join, args=(store, rank, world_size, LONG))
            for store, rank in zip(stores, ranks, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return stores

    first = start(3, [0, 1, 2])
    first[0].set("key", "1")
    assert first[2].get("key") == b"1"
    second = start(3, [2, 1, 0])
    assert not second[0].check(["key"])
    second[0].set("key", "2")
    third = start(2, [0, 1])
    assert not third[1].check(["key"])
    assert first[1].get("key") == b"1"
    assert second[2].get("key") == b"2"


def test_join_says_who_has_not_come(shared_server, opened):
    store = opened(shared_server.url("incomplete"))
    with pytest.raises(StoreTimeoutError, match="in vain for ranks 0, 2 of 3 to come"):
        join(store, 1, 3, SHORT)
    # It has left, so that a later start is not taken for complete without it.
    stores = [opened(shared_server.url("incomplete")) for _ in range(3)]
    with pytest.raises(StoreTimeoutError, match="ranks 1, 2 of 3"):
        join(stores[0], 0, 3, SHORT)


def _train(url, seed):
    import os

    register_redis()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=world_size)
    torch.manual_seed(seed)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.full((2, 4), float(rank))).sum().backward()
    gradient = model.module.weight.grad.sum().item()
    pair = dist.new_group([0, 1])
    total = torch.ones(1)
    if rank < 2:
        dist.all_reduce(total, group=pair)
    dist.barrier()
    dist.destroy_process_group()
    return gradient, total.item()


@pytest.mark.slow
def test_unchanged_script_trains_on_redis(shared_server):
    for seed in range(2):  # the second start finds what the first has left
        results = run_ranks(
            _train, 3, shared_server.url("train"), seed, process_group=False
        )
        assert [total for _, total in results] == [2, 2, 1]
        assert {round(gradient, 4) for gradient, _ in results} == {32.0}


@pytest.mark.slow
def test_importing_stores_needs_no_redis():
    code = "import sys; sys.modules['redis'] = None; import drivetrain_comm.stores"
    subprocess.run([sys.executable, "-c", code], check=True)
