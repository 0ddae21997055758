"""Where time has gone, and what people and programs are shown of a job."""

import urllib.request

import pytest
from fake_agent import (
    beat_of,
    status_of,
    wait_for,
    worker,
)

from drivetrain_elastic import Master
from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic._commands._live_table import show_live
from drivetrain_elastic._master._time_accounting import TimeAccounting
from drivetrain_elastic.protocol import messages as pb


def test_time_is_accounted_for_also_by_the_next_master(pair, job, agent):
    a, b, first = pair()
    a.say(heartbeat=beat_of("a", {0: 0.1, 1: 0.1}, step=20))
    b.say(heartbeat=beat_of("b", {0: 0.1, 1: 0.1}, step=20))
    status = wait_for(first, lambda s: s.time.num_steps == 20)
    assert status.time.effective_s == pytest.approx(2.0)
    lost = sum(row.seconds for row in status.time.lost)
    assert status.time.effective_s + lost >= status.time.total_s - 1e-6
    total_s = status.time.total_s
    first.stop()
    second = job(node_timeout_s=1.0)
    assert status_of(second).time.total_s >= total_s
    # The ranks tell it again.
    workers = [worker("a", 0), worker("a", 1)]
    agent("a", workers=workers, master=second).say(
        heartbeat=beat_of("a", {0: 0.1, 1: 0.1}, step=25)
    )
    wait_for(second, lambda s: s.time.num_steps == 25)


def test_last_words_of_a_worker_are_accounted_for(pair):
    a, b, master = pair()
    a.say(heartbeat=beat_of("a", {0: 0.1, 1: 0.1}, step=18))
    wait_for(master, lambda s: s.time.num_steps == 18)
    account = pb.Account(epoch=1, last_step=20, last_sample=160, steps_s=2.0)
    for one in (a, b):
        one.report(
            *(
                (
                    f"{one.node}/{slot}",
                    slot,
                    {
                        "state": pb.WorkerReport.FINISHED,
                        "progress": pb.WorkerProgress(
                            name=f"{one.node}/{slot}", step=20, accounts=[account]
                        ),
                    },
                )
                for slot in (0, 1)
            )
        )
    status = wait_for(master, lambda s: s.ended)
    assert (status.time.num_steps, status.time.num_samples) == (20, 160)


def test_ended_job_keeps_its_ledger_for_the_next_master():
    records = []
    first = TimeAccounting(records, lambda _: "")
    first.begin()
    first.enter(1, ["a"], [], "start", [])
    account = pb.Account(epoch=1, last_step=10, last_sample=80, steps_s=1e-4)
    first.take([pb.WorkerProgress(name="a", accounts=[account])])
    first.end()
    ledger = first.ledger()
    second = TimeAccounting([], lambda _: "")
    for record in records:
        assert second.replay(record)
    assert second.ledger().num_steps == ledger.num_steps == 10
    assert second.ledger().num_samples == ledger.num_samples == 80
    assert second.ledger().total_s == pytest.approx(ledger.total_s, abs=1e-3)


def test_times_that_nobody_has_are_bounded():
    keeper = TimeAccounting([], lambda _: "")
    keeper.begin()
    keeper.enter(1, ["a", "b"], [], "start", [])
    for name in "ab":
        account = pb.Account(epoch=1, steps_s=1.7e308, forming_s=1.7e308)
        keeper.take([pb.WorkerProgress(name=name, accounts=[account])])
    assert keeper.ledger().effective_s < 1e11


@pytest.mark.slow
@pytest.mark.extra
def test_metrics_are_served(tmp_path, agent):
    with Master(tmp_path / "own.db", metrics="127.0.0.1:0") as master:
        a = agent("a", master=master, min_workers=1)
        a.ready(0)
        a.world()
        a.say(heartbeat=beat_of("a", {0: 0.1}))
        a.say(alert=pb.Alert(kind="traffic", reason="x"))
        wait_for(master, lambda s: s.nodes[0].alerts and s.time.num_steps)
        url = f"http://{master.metrics}/metrics"
        with urllib.request.urlopen(url, timeout=60) as reply:
            text = reply.read().decode()
    assert "drivetrain_elastic_up 1.0" in text
    assert 'drivetrain_elastic_worker_step{node="a",rank="0"} 10.0' in text
    assert 'drivetrain_elastic_node_alerts{node="a"} 1.0' in text
    assert "drivetrain_elastic_steps_total 10.0" in text


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:x", "127.0.0.1:99999"])
def test_metrics_at_no_address_are_refused(tmp_path, address):
    with pytest.raises(
        ValueError, match="an address is HOST:PORT with a port to 65535"
    ):
        Master(tmp_path / "own.db", metrics=address)


def test_live_table_shows_workers_alerts_and_events(pair):
    import io

    from rich.console import Console

    a, b, master = pair()
    a.say(heartbeat=beat_of("a", {0: 0.1, 1: 0.1}, number=0))
    b.say(heartbeat=beat_of("b", {0: 0.1, 1: 0.3}, number=0))
    a.say(alert=pb.Alert(kind="traffic", reason="nothing is sent"))
    wait_for(
        master,
        lambda s: (
            any(node.alerts for node in s.nodes)
            and any(w.slowness > 2 for node in s.nodes for w in node.workers)
        ),
    )
    out = io.StringIO()
    with MasterClient(master.address, master.token) as client:
        show_live(client, console=Console(file=out, width=160), num_times=1)
    text = out.getvalue()
    assert "world 1 of 4" in text
    assert "3.00x" in text
    assert "traffic" in text
    assert "node-joined a" in text


def test_live_table_of_a_master_that_is_gone_says_so(tmp_path):
    import io

    from rich.console import Console

    with Master(tmp_path / "own.db") as master:
        client = MasterClient(master.address, master.token, patience_s=0.1)
    out = io.StringIO()
    with client:
        show_live(client, console=Console(file=out, width=160), num_times=1)
    assert "no master answers" in out.getvalue()
