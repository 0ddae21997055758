"""What is found to slow a start, decided without a resolver and probed with one."""

import socket
import threading
import time

import pytest

from drivetrain_comm._resolver import (
    Lookup,
    Surroundings,
    decide,
    probe,
    startup_findings,
)


def judge(name, found, world_size=100, ranks_per_host=8, *, is_lazy=True):
    findings = decide(found, world_size, ranks_per_host, is_lazy=is_lazy)
    (finding,) = [f for f in findings if f.name == name]
    assert (finding.level == "ok") == (not finding.fix)
    return finding


@pytest.mark.parametrize(
    ("seconds", "answer", "level"),
    [
        (0.001, "host", "ok"),
        (0.001, "none (unknown)", "ok"),
        (0.2, "host", "warn"),
        (5.0, "none (timed out)", "bad"),
        (0.02, None, "warn"),
        (6.0, None, "bad"),
    ],
)
def test_resolver_by_its_slowest_answer(seconds, answer, level):
    quick = Lookup(asked="master", seconds=0.0, answer="10.0.0.1")
    slow = Lookup(asked="::ffff:10.0.0.1", seconds=seconds, answer=answer)
    finding = judge("resolver", Surroundings(lookups=(quick, slow)))
    assert finding.level == level
    if level != "ok":
        assert "'::ffff:10.0.0.1 host-10-0-0-1' to /etc/hosts" in finding.fix
        assert "RES_OPTIONS" in finding.fix


def test_resolver_of_a_slow_name():
    slow = Lookup(asked="master", seconds=1.0, answer="10.0.0.1")
    finding = judge("resolver", Surroundings(lookups=(slow,)))
    assert "'ADDRESS master'" in finding.fix


def test_master_that_has_no_address(monkeypatch):
    def answer(name, port):
        if name == "typo":
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET6, 1, 6, "", ("fd00::1", 0, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    (finding, *_) = startup_findings(world_size=8, master="typo")
    assert finding.level == "bad"
    assert "no address of typo" in finding.because
    assert "Name or service not known" in finding.because
    assert finding.fix
    # One of IPv6 alone is an address as well.
    (finding, *_) = startup_findings(world_size=8, master="six")
    assert "no address" not in finding.because


@pytest.mark.parametrize(("value", "level"), [(None, "ok"), (100, "ok"), (99, "warn")])
def test_somaxconn(value, level):
    finding = judge("somaxconn", Surroundings(somaxconn=value))
    assert finding.level == level
    assert ("net.core.somaxconn=128" in finding.fix) == (level == "warn")


@pytest.mark.parametrize(
    ("limits", "level", "fix"),
    [
        (None, "ok", ""),
        ((-1, -1), "ok", ""),
        ((4096, 4096), "ok", ""),
        ((1024, 1 << 20), "bad", "ulimit -n 4096"),
        ((1024, 1024), "bad", "LimitNOFILE=4096"),
    ],
)
def test_open_files(limits, level, fix):
    finding = judge("open files", Surroundings(open_files=limits), world_size=2048)
    assert finding.level == level
    assert fix in finding.fix


@pytest.mark.parametrize(
    ("is_lazy", "level", "fix"),
    [(True, "ok", ""), (False, "warn", "TORCH_GLOO_LAZY_INIT=1")],
)
def test_ports(is_lazy, level, fix):
    found = Surroundings(ports=(32768, 60999))
    finding = judge("ports", found, world_size=9000, is_lazy=is_lazy)
    assert finding.level == level
    assert fix in finding.fix


def test_probe_does_not_wait_for_a_resolver_that_hangs(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(socket, "getnameinfo", lambda *_: never.wait() and ("", ""))
    started = time.monotonic()
    found = probe("127.0.0.1", most_s=0.2)
    never.set()
    assert time.monotonic() - started < 30
    assert any(
        lookup.answer is None and lookup.asked == "::ffff:127.0.0.1"
        for lookup in found.lookups
    )


def test_probe_notices_one_lost_question_of_many(monkeypatch):
    never, first = threading.Event(), threading.Lock()

    def drop_one(*_):
        if first.acquire(blocking=False):
            never.wait()
        return "host", "0"

    monkeypatch.setattr(socket, "getnameinfo", drop_one)
    found = probe("127.0.0.1", most_s=0.2)
    never.set()
    assert [lookup.answer for lookup in found.lookups].count(None) == 1


def test_findings_of_this_host(monkeypatch):
    monkeypatch.setattr(socket, "getnameinfo", lambda *_: ("host", "0"))
    findings = startup_findings(world_size=2, master="127.0.0.1", environment={})
    assert [f.name for f in findings] == [
        "resolver",
        "somaxconn",
        "open files",
        "ports",
    ]
    assert all(finding.because for finding in findings)
