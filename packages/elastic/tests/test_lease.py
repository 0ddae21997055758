"""A lease is one candidate's at a time, and who may have lost it stops."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_contract import check_lease

from drivetrain_elastic._master._leadership import Leadership
from drivetrain_elastic.decisions.lease import LeaseState, renew_in
from drivetrain_elastic.journal import JournalError, RedisLease


@pytest.mark.parametrize(
    ("now_s", "state", "pause_s", "says"),
    [
        (10.0, LeaseState(10.0, 10.0), 1.0, "renewed in time"),
        (10.9, LeaseState(10.0, 10.0), 0.1, "renewed in time"),
        (11.0, LeaseState(10.0, 10.0), 0.0, "renewed in time"),
        (11.5, LeaseState(10.0, 11.4), 0.05, "not renewed yet"),
        (12.9, LeaseState(10.0, 12.9), 0.1, "not renewed yet"),
        (13.0, LeaseState(10.0, 10.0), None, "of 3 s was last renewed 3.0 s ago"),
        (99.0, LeaseState(10.0, 10.0), None, "was last renewed 89.0 s ago"),
        (10.1, LeaseState(10.0, 10.0, is_taken=True), None, "another master has"),
    ],
)
def test_lease_is_renewed_in_time_or_lost(now_s, state, pause_s, says):
    found_s, reason = renew_in(now_s, state, 3.0)
    assert found_s == (None if pause_s is None else pytest.approx(pause_s))
    assert says in reason


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100), st.floats(0.1, 60))
def test_lease_is_never_thought_held_beyond_its_end(
    renewed_s, tried_s, later_s, lease_s
):
    state = LeaseState(renewed_s, max(renewed_s, tried_s))
    now_s = state.tried_s + later_s
    pause_s, _ = renew_in(now_s, state, lease_s)
    if now_s - renewed_s >= lease_s:
        assert pause_s is None
    else:
        assert 0 <= pause_s <= renewed_s + lease_s - now_s + 1e-9


class FakeLease:
    """A lease that gives the answers of a list."""

    lease_s = 60.0
    served_at = holder = ""

    def __init__(self, *answers):
        self.answers, self.addresses, self.num_releases = list(answers), [], 0

    def renew(self, address=""):
        self.addresses.append(address)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def release(self):
        self.num_releases += 1


async def kept(lease, address=""):
    """Returns whether a lease is lost, in which case nobody waits for its end."""
    stopping = asyncio.Event()
    async with Leadership(lease, stopping) as leadership, asyncio.timeout(60):
        while len(lease.addresses) < 1:
            await asyncio.sleep(0)
        if address:
            leadership.publish(address)
        while lease.answers:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        return stopping.is_set()


def test_master_stops_at_once_when_another_has_its_lease(caplog):
    lease = FakeLease(False)
    assert asyncio.run(kept(lease))
    assert "gives way: another master has the lease" in caplog.text
    assert lease.num_releases == 1


def test_master_goes_on_when_one_renewal_fails(caplog):
    lease = FakeLease(JournalError("no answer"), True)
    lease.lease_s = 10.0
    assert not asyncio.run(kept(lease))
    assert "the lease was not renewed: no answer" in caplog.text
    assert lease.num_releases == 1


def test_address_is_published_at_once():
    lease = FakeLease(True, True)
    assert not asyncio.run(kept(lease, "host:1"))
    assert lease.addresses == ["", "host:1"]


@pytest.mark.slow
@pytest.mark.extra
def test_redis_lease_keeps_the_contract(redis_server):
    server = redis_server()
    check_lease(lambda: RedisLease(server.url(), lease_s=0.5))
    check_lease(lambda: RedisLease(server.url(), job="other", lease_s=0.5))


@pytest.mark.extra
def test_candidate_waits_while_the_server_is_away(redis_server, caplog):
    server = redis_server()
    first, second = (RedisLease(server.url(), lease_s=60) for _ in range(2))
    assert first.acquire(0.0)
    server.kill()
    assert not second.acquire(0.0)
    assert "does not answer" in caplog.text
    server.start()
    assert not second.acquire(0.0)
    assert first.renew()
    first.release()
    assert second.acquire(0.0)
    second.release()
