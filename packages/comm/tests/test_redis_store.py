"""torch's contract of a store, on RedisStore and beside it on torch's own; and outages."""

import logging
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from drivetrain_comm.stores import RedisStore, StoreTimeoutError, join, register_redis
from drivetrain_comm.stores._address import parse_address
from drivetrain_comm.testing import CountingStore, RedisServer, has_redis_server
from drivetrain_core import DistributedError, MissingLibraryError
from drivetrain_core.testing import RankError, run_ranks

redis = pytest.importorskip("redis", reason="redis-py is not installed")
pytestmark = [
    pytest.mark.extra,
    pytest.mark.skipif(
        not has_redis_server(), reason="no redis-server: apt-get install redis-server"
    ),
]

SHORT = timedelta(milliseconds=100)
LONG = timedelta(seconds=30)
ODD_NAMES = [
    "",
    " ",
    "a b",
    "line\nline",
    "nul\0nul",
    "{brace}",
    "ü€😀",
    "a:w:b",
    "k" * 999,
]


@pytest.fixture(scope="module")
def shared_server():
    with RedisServer() as server:
        yield server


@pytest.fixture
def server():
    """One that a test may kill."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def opened(request):
    """Makes stores that are closed at the end."""
    stores = []

    def make(url, **options):
        options.setdefault("retry", timedelta(seconds=0.5))
        store = RedisStore(url, **options)
        stores.append(store)
        return store

    yield make
    for store in stores:
        store.close()


def job_of(request):
    return request.node.name


@pytest.fixture(params=["hash", "tcp", "redis", "prefix over redis", "counting redis"])
def store(request, shared_server, opened):
    if request.param == "hash":
        yield dist.HashStore()
        return
    if request.param == "tcp":
        yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return
    inner = opened(shared_server.url(f"{request.node.name} {time.monotonic_ns()}"))
    if request.param == "redis":
        yield inner
        return
    # Held here: C++ calls what lies under a prefix, and does not keep it alive.
    wrapper = CountingStore(inner)
    is_prefixed = request.param == "prefix over redis"
    yield dist.PrefixStore("prefix", wrapper) if is_prefixed else wrapper


def test_store_set_and_get(store):
    store.set("key", "text")
    assert store.get("key") == b"text"
    store.set("key", b"\x00\xff")
    assert store.get("key") == b"\x00\xff"
    store.set("key", "")
    assert store.get("key") == b""


@pytest.mark.parametrize("name", ODD_NAMES)
def test_store_takes_any_name(store, name):
    store.set(name, "value")
    assert store.check([name])
    assert store.get(name) == b"value"
    assert store.add(f"{name}/n", 1) == 1
    assert store.delete_key(name)
    assert not store.check([name])


def test_store_takes_large_values(store):
    value = bytes(range(256)) * (8 << 12)  # 8 MiB
    store.set("large", value)
    assert store.get("large") == value


def test_store_adds(store):
    assert store.add("n", 2) == 2
    assert store.add("n", -5) == -3
    assert store.get("n") == b"-3"
    assert store.add("n", 0) == -3
    assert store.add("n", 2**62) == 2**62 - 3  # more than a double holds
    store.set("text", "7")
    assert store.add("text", 1) == 8


def test_store_compares_and_sets(store):
    assert store.compare_set("key", "old", "new") == b"old"
    assert not store.check(["key"])
    assert store.compare_set("key", "", "one") == b"one"
    assert store.compare_set("key", "", "two") == b"one"
    assert store.compare_set("key", "one", "two") == b"two"
    assert store.get("key") == b"two"


def test_store_does_several_at_once(store):
    assert store.has_extended_api()
    store.multi_set(["a", "b", "c"], ["1", "", "3"])
    assert store.multi_get(["c", "a", "b", "a"]) == [b"3", b"1", b"", b"1"]
    assert store.multi_get([]) == []
    store.append("a", "2")
    store.append("new", "x")
    assert store.multi_get(["a", "new"]) == [b"12", b"x"]


def test_store_checks_deletes_and_counts(store):
    assert store.num_keys() == 0
    assert store.check([])
    store.multi_set(["a", "b"], ["1", "2"])
    assert store.num_keys() == 2
    assert store.check(["a", "b"])
    assert not store.check(["a", "c"])
    assert store.delete_key("a")
    assert not store.delete_key("a")
    assert store.num_keys() == 1


def test_store_wait_ends_in_time(store):
    store.set("there", "1")
    store.wait(["there"], SHORT)
    store.wait([])
    with pytest.raises(dist.DistStoreError, match=r"(?i)wait timeout"):
        store.wait(["there", "missing"], SHORT)
    store.set_timeout(SHORT)
    assert store.timeout == SHORT
    for call in (
        store.get,
        lambda key: store.wait([key]),
        lambda k: store.multi_get([k]),
    ):
        with pytest.raises(dist.DistStoreError, match=r"(?i)wait timeout"):
            call("missing")


@pytest.mark.parametrize("write", ["set", "add", "append", "compare_set", "multi_set"])
def test_store_wait_is_woken_by_each_kind_of_write(store, write):
    if isinstance(store, dist.HashStore) and write != "set":
        pytest.skip("torch's HashStore wakes only who waits for a set")
    writes = {
        "set": lambda: store.set("late", "1"),
        "add": lambda: store.add("late", 1),
        "append": lambda: store.append("late", "1"),
        "compare_set": lambda: store.compare_set("late", "", "1"),
        "multi_set": lambda: store.multi_set(["x", "late"], ["2", "1"]),
    }
    found = []
    reader = store.clone()
    thread = threading.Thread(target=lambda: found.append(reader.get("late")))
    thread.start()
    writes[write]()
    thread.join(30)
    assert found == [b"1"]


def test_store_barrier(store):
    reader = store.clone()
    thread = threading.Thread(target=lambda: reader.barrier("all", 2, LONG))
    thread.start()
    store.barrier("all", 2, LONG)
    thread.join(30)
    assert not thread.is_alive()


def test_redis_store_names_the_missing_keys(shared_server, opened):
    store = opened(shared_server.url("missing"))
    store.set("b", "1")
    with pytest.raises(StoreTimeoutError, match=r"100ms, keys: a, c$"):
        store.wait(["a", "b", "c", "a"], SHORT)
    with pytest.raises(StoreTimeoutError, match=r"keys: k0, .*k7 and 12 more$"):
        store.wait([f"k{n}" for n in range(20)], SHORT)


def test_redis_store_lists_its_keys(shared_server, opened):
    store = opened(shared_server.url("list"))
    store.multi_set(ODD_NAMES, ["1"] * len(ODD_NAMES))
    assert sorted(store.list_keys()) == sorted(ODD_NAMES)


def test_redis_store_takes_more_keys_than_one_command(shared_server, opened):
    store = opened(shared_server.url("many"))
    keys = [f"key/{n}" for n in range(3000)]
    done = []
    waiter = threading.Thread(target=lambda: (store.wait(keys, LONG), done.append(1)))
    waiter.start()
    store.multi_set(keys, [str(n) for n in range(3000)])
    waiter.join(30)
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
    thread.join(30)
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

    import torch.distributed as dist

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


def test_unchanged_script_trains_on_redis(shared_server):
    for seed in range(2):  # the second start finds what the first has left
        results = run_ranks(
            _train, 3, shared_server.url("train"), seed, process_group=False
        )
        assert [total for _, total in results] == [2, 2, 1]
        assert {round(gradient, 4) for gradient, _ in results} == {32.0}


def _wait_for_ever(url):
    RedisStore(url, retry=timedelta(seconds=0.5)).get("never")


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


def test_importing_stores_needs_no_redis():
    code = "import sys; sys.modules['redis'] = None; import drivetrain_comm.stores"
    subprocess.run([sys.executable, "-c", code], check=True)
