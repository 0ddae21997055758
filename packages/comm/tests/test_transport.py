"""The engine reduces any tensors exactly, over sockets and shared memory."""

import hashlib
import os
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from drivetrain_comm.backend import _native
from drivetrain_core import DistributedError
from drivetrain_testing import run_ranks

pytestmark = pytest.mark.skipif(
    _native.missing_because() is not None, reason=str(_native.missing_because())
)

DTYPES = [
    "uint8",
    "int8",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
SIZES = [0, 1, 7, 1000, 70_001]


def transport(ranks_per_host, prefix="test", **options):
    """The transport of a rank, in a world whose hosts have so many ranks each."""
    from datetime import timedelta

    from drivetrain_comm.backend._transport import Transport

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ["DRIVETRAIN_COMM_HOST"] = str(rank // ranks_per_host)
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    place = dist.PrefixStore(prefix, store)
    timeout = timedelta(seconds=20)
    return Transport(place, rank, world_size, timeout, **options)


def reduces_everything(ranks_per_host):
    from drivetrain_comm.backend._transport import is_supported
    from drivetrain_comm.selection._choice import Choice

    it = transport(ranks_per_host)
    reduce = {
        "SUM": lambda x: x.sum(0),
        "PRODUCT": lambda x: x.prod(0),
        "MIN": lambda x: x.amin(0),
        "MAX": lambda x: x.amax(0),
        "AVG": lambda x: x.sum(0) / it.world_size,
    }
    seen = 0
    for name in it.algorithms[1:]:
        for dtype in (getattr(torch, name) for name in DTYPES):
            for operation, expected in reduce.items():
                if not is_supported(dtype, operation):
                    continue
                for size in SIZES:
                    whole = torch.stack(
                        [(torch.arange(size) % 5 + r) % 7 for r in range(it.world_size)]
                    )
                    mine = whole[it.rank].to(dtype, copy=True)
                    streams = 1 + size % 3
                    choice = Choice(
                        algorithm=name, num_streams=streams, segment_bytes=4096
                    )
                    it.all_reduce([mine], operation, choice, 20.0).finish()
                    wanted = expected(whole.double()).to(dtype) if size else mine
                    place = (name, dtype, operation, size)
                    # An average of sixteen-bit floats is divided before it is summed.
                    near = {torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(dtype, 1e-6)
                    near = near if operation == "AVG" else 0.0
                    assert torch.allclose(mine, wanted, rtol=near, atol=0), place
                    seen += 1
    dist_barrier(it)
    return seen, it.hosts


def dist_barrier(it):
    from drivetrain_comm.backend._probe import agree_on_most

    agree_on_most(it, [0.0], 20.0)
    # Whoever leaves first takes its store's answers along.
    agree_on_most(it, [0.0], 20.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "ranks_per_host"),
    [(2, 2), (3, 1), (4, 2), pytest.param(5, 2, marks=pytest.mark.faults)],
)
def test_reduction_is_exact(world_size, ranks_per_host):
    found = run_ranks(
        reduces_everything,
        world_size,
        ranks_per_host,
        process_group=False,
        timeout_s=120,
    )
    assert all(seen > 0 for seen, _ in found)
    hosts = found[0][1]
    assert len(hosts[0]) == min(ranks_per_host, world_size)


def many_at_once(ranks_per_host):
    from drivetrain_comm.selection._choice import Choice

    it = transport(ranks_per_host)
    generator = torch.Generator().manual_seed(it.rank)
    digests = []
    for name in it.algorithms[1:]:
        vectors = [
            [
                torch.rand(1 + i * 13 % 4000, generator=generator)
                for _ in range(i % 4 + 1)
            ]
            for i in range(150)
        ]
        choice = Choice(algorithm=name, num_streams=2)
        tickets = [it.all_reduce(v, "AVG", choice, 20.0) for v in vectors]
        for ticket in tickets:
            ticket.finish()
        data = b"".join(t.numpy().tobytes() for v in vectors for t in v)
        digests.append(hashlib.sha256(data).hexdigest())
    dist_barrier(it)
    return digests


@pytest.mark.parametrize(("world_size", "ranks_per_host"), [(4, 2), (3, 1)])
def test_results_are_equal_bit_by_bit_on_all_ranks(world_size, ranks_per_host):
    found = run_ranks(
        many_at_once, world_size, ranks_per_host, process_group=False, timeout_s=90
    )
    assert all(one == found[0] for one in found)


def contradicts(what):
    from drivetrain_comm.selection._choice import Choice

    if what == "settings":
        transport(1, settings=f"streams={os.environ['RANK']}")
    it = transport(1)
    size, name, streams, operation = 100, "direct", 1, "SUM"
    if it.rank == 1:
        size = 101 if what == "size" else 100
        streams = 2 if what == "streams" else 1
        operation = "MAX" if what == "operation" else "SUM"
    choice = Choice(algorithm=name, num_streams=streams)
    it.all_reduce([torch.ones(size)], operation, choice, 5.0).finish()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("size", r"rank \d sends 40\d bytes .* this rank has 40\d"),
        ("operation", "another dtype or reduction"),
        ("streams", "by another algorithm or version"),
        ("settings", "rank 1 has the settings streams=1, rank 0 streams=0"),
    ],
)
def test_ranks_that_contradict_each_other_are_named(what, says):
    with pytest.raises(DistributedError, match=says):
        run_ranks(contradicts, 2, what, process_group=False)


def times_out():
    from drivetrain_comm.selection._choice import Choice

    it = transport(1)
    if it.rank == 1:
        import time

        time.sleep(4)
        return "slept"
    try:
        choice = Choice(algorithm="direct")
        it.all_reduce([torch.ones(9)], "SUM", choice, 1.0).finish()
    except DistributedError as error:
        return str(error)
    return "no error"


@pytest.mark.slow
def test_rank_that_does_not_come_is_named():
    found = run_ranks(times_out, 2, process_group=False)
    assert "timed out: nothing more comes from rank 1" in found[0]


def survives_strangers():
    import socket
    import struct

    from drivetrain_comm.selection._choice import Choice

    it = transport(1)
    engine = it._engine
    hello = struct.pack("<II16sii", 0x48435444, 1, b"x" * 16, 0, 0)
    words = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, hello, hello + b"more" * 99]
    words.append(struct.pack("<II16sii", 0x48435444, 9, b"x" * 16, 0, 0))
    strangers = []
    for word in words:
        one = socket.create_connection((engine.host, engine.port))
        one.sendall(word)
        strangers.append(one)
    for _ in range(20):
        x = torch.ones(1000)
        it.all_reduce([x], "SUM", Choice(algorithm="ring"), 10.0).finish()
        assert x[0] == it.world_size
    for one in strangers:
        one.close()
    dist_barrier(it)


def test_strangers_that_connect_change_nothing():
    run_ranks(survives_strangers, 3, process_group=False)


def test_whoever_comes_for_a_group_that_is_gone_is_sent_away():
    import socket
    import struct

    engine, token = _native.engine("127.0.0.1"), os.urandom(16)
    engine.remove_group(engine.add_group(token, 1, 2, 0))
    with socket.create_connection((engine.host, engine.port)) as late:
        late.sendall(struct.pack("<II16sii", 0x48435444, 1, token, 0, 0))
        late.settimeout(60)
        assert late.recv(1) == b""


def survives_many_silent_strangers():
    import resource
    import socket

    from drivetrain_comm.selection._choice import Choice

    it = transport(1)
    choice = Choice(algorithm="direct")
    engine = it._engine
    if it.rank == 1:
        in_use = len(list(Path("/proc/self/fd").iterdir()))
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 16, hard))
        it._store.set("there", f"{engine.host} {engine.port}")
        it._store.get("surrounded")
    else:
        host, port = it._store.get("there").decode().split()
        strangers = [socket.create_connection((host, int(port))) for _ in range(32)]
        it._store.set("surrounded", "")
    x = torch.ones(1000)
    it.all_reduce([x], "SUM", choice, 15.0).finish()
    assert x[0] == 2
    if it.rank == 0:
        for stranger in strangers:
            stranger.close()
    dist_barrier(it)


@pytest.mark.slow
def test_silent_strangers_give_way_where_descriptors_are_short():
    run_ranks(survives_many_silent_strangers, 2, process_group=False)


def recovers_from_a_lack_of_descriptors(ranks_per_host):
    import resource

    from drivetrain_comm.selection._choice import Choice

    it = transport(ranks_per_host)
    choice = Choice(algorithm="direct", num_streams=8)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if it.rank == 1:
        in_use = len(list(Path("/proc/self/fd").iterdir()))
        room = 3 if ranks_per_host == 1 else 0
        resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + room, hard))
    it._store.set(f"ready/{it.rank}", "")
    it._store.wait([f"ready/{1 - it.rank}"])
    said = ""
    try:
        it.all_reduce([torch.ones(9)], "SUM", choice, 15.0).finish()
    except DistributedError as error:
        said = str(error)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    it.close()
    again = transport(ranks_per_host, "again")
    x = torch.ones(9)
    again.all_reduce([x], "SUM", choice, 15.0).finish()
    dist_barrier(again)
    return said, x[0].item()


@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_group_after_one_that_lacked_descriptors_is_as_any(ranks_per_host):
    found = run_ranks(
        recovers_from_a_lack_of_descriptors, 2, ranks_per_host, process_group=False
    )
    assert "too many open files" in found[1][0]
    for said, value in found:
        assert said
        # Each is told, and waits for no limit.
        assert "timed out" not in said
        assert value == 2


def waits_for_ever():
    from drivetrain_comm.selection._choice import Choice

    it = transport(1)
    ticket = it.all_reduce([torch.ones(9)], "SUM", Choice(algorithm="direct"), 15.0)
    error = ticket.wait(1e13)
    dist_barrier(it)
    return error


def test_wait_takes_any_number_of_seconds():
    assert run_ranks(waits_for_ever, 2, process_group=False) == ["", ""]


def member(**changes):
    from drivetrain_comm.backend._rendezvous import Member

    usual = {
        "version": "0.1.0",
        "protocol": 1,
        "identity": "a",
        "hostname": "a",
        "host": "10.0.0.1",
        "port": 1,
        "local_name": "",
        "settings": "default",
        "lacks": None,
    }
    return Member(**{**usual, **changes})


def test_rank_of_another_version_is_named():
    import json
    from datetime import timedelta

    from drivetrain_comm.backend._rendezvous import rendezvous

    store = dist.HashStore()
    # It has more to say than this version knows.
    other = {**asdict(member(version="0.2.0", protocol=2)), "colour": "red"}
    store.set("member/1", json.dumps(other))
    says = r"rank 1 runs drivetrain-comm 0\.2\.0 \(protocol 2\), rank 0 0\.1\.0"
    with pytest.raises(DistributedError, match=says):
        rendezvous(store, 0, 2, member(), timedelta(seconds=5))


def meets_in_vain():
    from datetime import timedelta

    from drivetrain_comm.backend._rendezvous import rendezvous

    rank = int(os.environ["RANK"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    if rank == 1:
        import time

        time.sleep(3)
        return "slept"
    try:
        rendezvous(store, rank, 2, member(), timedelta(seconds=1))
    except DistributedError as error:
        return str(error)
    return "no error"


@pytest.mark.slow
def test_rank_that_never_meets_the_others_is_named():
    found = run_ranks(meets_in_vain, 2, process_group=False)
    assert found[0] == "waited 1 s in vain for ranks 1 to come"


def refuses():
    from drivetrain_comm.selection._choice import Choice

    it = transport(2)
    with pytest.raises(DistributedError, match="complex64"):
        it.all_reduce(
            [torch.ones(2, dtype=torch.complex64)],
            "SUM",
            Choice(algorithm="direct"),
            5.0,
        )
    with pytest.raises(DistributedError, match=r"AVG of torch\.int32"):
        it.all_reduce(
            [torch.ones(2, dtype=torch.int32)], "AVG", Choice(algorithm="direct"), 5.0
        )
    both = [torch.ones(2), torch.ones(2, dtype=torch.float64)]
    with pytest.raises(TypeError, match=r"got torch\.float32 and torch\.float64"):
        it.all_reduce(both, "SUM", Choice(algorithm="direct"), 5.0)
    freed, fake = torch.ones(3, 2), torch._to_functional_tensor(torch.ones(2))
    freed.untyped_storage().resize_(0)
    for tensor, why in (
        (freed, r"shape \(3, 2\), has no memory: it was freed"),
        (fake, "no memory of its own"),
        (torch.ones(2, device="meta"), "lies on meta"),
    ):
        with pytest.raises(TypeError, match=why):
            it.all_reduce([tensor], "SUM", Choice(algorithm="direct"), 5.0)
    dist_barrier(it)


def test_reductions_that_are_not_defined_are_refused():
    run_ranks(refuses, 2, process_group=False)


def reduces_all_halves():
    from drivetrain_comm.selection._choice import Choice

    it = transport(2)
    halves = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.float16)
    found = {}
    for shift in (0, 1, 1 << 10, 1 << 15, 12_345):
        other = halves.roll(shift)
        mine = (other if it.rank else halves).clone()
        it.all_reduce([mine], "SUM", Choice(algorithm="direct"), 20.0).finish()
        wanted = halves.float().add(other.float()).half()
        found[shift] = torch.equal(mine.nan_to_num(7), wanted.nan_to_num(7))
    dist_barrier(it)
    return found


def test_halves_are_rounded_as_torch_does_subnormal_ones_too():
    for found in run_ranks(reduces_all_halves, 2, process_group=False):
        assert all(found.values()), found
