"""Notices of clouds: their documents, and endpoints that are hostile or missing."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_cloud.notices import (
    CLOUDS,
    AlibabaCloud,
    Aws,
    Azure,
    BadAnswerError,
    FakeCloud,
    GoogleCloud,
    MetadataReader,
    NoticeWatch,
    Sighting,
    cloud_of,
    find_cloud,
    sighting_of_node,
    sighting_of_pod,
)
from drivetrain_cloud.notices.sighting import seconds_until, wall_time
from drivetrain_cloud.notices.watch import next_notice
from drivetrain_core.services import CapacityNotice

DATE = "Mon, 05 Jan 2026 18:00:00 GMT"


@contextlib.contextmanager
def serve(*answers):
    """Serves raw answers, one a connection, the last again and again."""
    server = socket.create_server(("127.0.0.1", 0))
    requests, end = [], threading.Event()

    def run():
        number = 0
        while not end.is_set():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                requests.append(connection.recv(65536).decode("latin-1"))
                answer = answers[min(number, len(answers) - 1)]
                number += 1
                with contextlib.suppress(OSError):
                    if callable(answer):
                        answer(connection, end)
                    else:
                        connection.sendall(answer)

    threading.Thread(target=run, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}", requests
    finally:
        end.set()
        server.close()


def answer(body, status="200 OK", **headers):
    body = body if isinstance(body, bytes) else body.encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


TOKEN = answer("t0ken")


# ---- what clouds say ----


@pytest.mark.parametrize("name", CLOUDS)
@pytest.mark.parametrize("skew_s", [0.0, 5000.0, -5000.0])
def test_each_cloud_tells_of_the_end_and_takes_it_back(name, skew_s):
    with FakeCloud(clock_skew_s=skew_s) as fake:
        cloud = cloud_of(f"{name}={fake.url}")
        assert cloud.is_here()
        assert cloud.look() is None
        fake.reclaim(30)
        found = cloud.look()
        assert 25 < found.remaining_s <= 30
        assert found.is_certain
        fake.withdraw()
        assert cloud.look() is None


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError, KeyError])
def test_a_fake_cloud_says_nothing_of_those_that_do_not_wait(capfd, monkeypatch, error):
    def answer(*_):
        raise error

    with FakeCloud() as fake:
        monkeypatch.setattr(fake, "answer", answer)
        place = fake.url.removeprefix("http://").split(":")
        with socket.create_connection((place[0], int(place[1]))) as asks:
            asks.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert asks.recv(1) == b""
    assert ("KeyError" in capfd.readouterr().err) == (error is KeyError)


def test_azure_is_told_that_a_node_is_no_longer_needed():
    with FakeCloud() as fake:
        fake.reclaim(30)
        heard = queue.Queue()
        with NoticeWatch(Azure(fake.url), "a", heard.put, interval_s=0.01) as watch:
            heard.get(timeout=60)
            watch.acknowledge()
        assert fake.started == ["ours"]


def test_a_recommendation_of_aws_is_no_certainty():
    with FakeCloud() as fake:
        fake.recommend()
        assert not Aws(fake.url).look().is_certain


def test_upkeep_and_lifecycle_of_aws():
    upkeep = [
        {"State": "completed", "NotBefore": "1 Jan 2026 00:00:00 GMT", "Code": "x"},
        {"State": "active", "NotBefore": "5 Jan 2026 19:00:00 GMT", "Code": "reboot"},
        {"State": "active", "NotBefore": "5 Jan 2026 18:10:00 GMT", "Code": "stop"},
    ]
    none = answer("", "404 Not Found")
    with serve(TOKEN, none, none, answer(json.dumps(upkeep), Date=DATE)) as (url, _):
        found = Aws(url).look()
    assert (found.remaining_s, "stop" in found.reason) == (600.0, True)
    with serve(TOKEN, none, answer("Terminated")) as (url, _):
        assert Aws(url).look().remaining_s == 120.0
    with serve(TOKEN, none, answer("InService"), none) as (url, _):
        assert Aws(url).look() is None


def test_a_token_that_is_refused_is_renewed_once():
    refused = answer("", "401 Unauthorized")
    spot = answer('{"action": "stop", "time": "2026-01-05T18:02:00Z"}', Date=DATE)
    with serve(TOKEN, refused, answer("other"), spot) as (url, requests):
        assert Aws(url).look().remaining_s == 120.0
    assert "X-aws-ec2-metadata-token: other" in requests[3]
    refusing = serve(TOKEN, refused, TOKEN, refused)
    with refusing as (url, _), pytest.raises(BadAnswerError, match="got 401"):
        AlibabaCloud(url).look()


def test_google_holds_a_question_until_something_changes():
    with FakeCloud() as fake:
        cloud = GoogleCloud(fake.url, wait_s=30.0)
        assert cloud.look() is None
        timer = threading.Timer(0.05, fake.reclaim, (30,))
        timer.start()
        assert cloud.look().remaining_s == 30.0


def test_upkeep_of_google_ends_a_machine_or_does_not():
    google = {"Metadata_Flavor": "Google"}
    calm = answer("FALSE", **google)
    for said, is_told in (("TERMINATE_ON_HOST_MAINTENANCE", True), ("MIGRATE", False)):
        with serve(calm, answer(said, **google)) as (url, _):
            assert (GoogleCloud(url).look() is not None) == is_told


# ---- endpoints that are hostile, or not there ----

BAD = {
    "html": answer("<html>please log in</html>"),
    "not http": b"SSH-2.0-OpenSSH\r\n\r\n",
    "empty": b"",
    "binary": answer(b"\xff\xfe\x00"),
    "list": answer("[1, 2]"),
    "null": answer("null"),
    "no time": answer('{"action": "stop"}'),
    "wrong time": answer('{"action": "stop", "time": "soon"}'),
    "number": answer('{"action": "stop", "time": 5}'),
    "far away": answer('{"action": "stop", "time": "9999-01-01T00:00:00Z"}'),
    "nested": answer("[" * 100_000),
    "too large": answer("x" * (2 << 20)),
    "server error": answer("", "500 Internal Server Error"),
    "redirect": answer("", "302 Found", Location="http://127.0.0.1:1/x"),
    "short": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "long chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"f" * 18
    + b"\r\nabc",
    "endless": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nabc",
    "year": answer('{"action": "stop", "time": "5 Jan 999999999999 18:00:00"}'),
}


@pytest.mark.parametrize("what", BAD)
def test_an_answer_that_no_cloud_gives_is_an_error(what):
    errors = (BadAnswerError, OSError)
    with serve(TOKEN, BAD[what]) as (url, requests), pytest.raises(errors):
        Aws(url).look()
    assert not any("/x" in line.split(" ")[1] for line in requests)
    with serve(BAD[what]) as (url, _), pytest.raises(errors):
        Azure(url).look()
    with serve(BAD[what]) as (url, _), pytest.raises(errors):
        GoogleCloud(url).look()


@pytest.mark.parametrize("part", ["header", "body"])
def test_an_answer_that_drips_ends_with_its_time(part):
    def drip(connection, end):
        if part == "body":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
        while not end.wait(0.02):
            connection.sendall(b"x")

    with serve(drip) as (url, _), pytest.raises(TimeoutError):
        MetadataReader(url, timeout_s=0.3).ask("GET", "/")


def test_an_endpoint_elsewhere_is_never_asked(monkeypatch):
    for url in ("http://8.8.8.8", "http://10.0.0.1", "http://[2001:db8::1]"):
        with pytest.raises(PermissionError, match="not link-local"):
            MetadataReader(url).ask("GET", "/")
    other = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: other)
    with pytest.raises(PermissionError):
        GoogleCloud().look()


@pytest.mark.parametrize(
    "url",
    [
        "https://169.254.169.254",
        "ftp://a",
        "x",
        "http://u@h",
        "http://a..b",
        f"http://{'a' * 70}",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:abc",
        "http://[::1",
    ],
)
def test_a_url_that_is_none_of_an_endpoint_is_refused(url):
    with pytest.raises(ValueError, match="expected http://"):
        MetadataReader(url)


def test_no_cloud_is_found_where_nobody_answers():
    with serve(answer("", "404 Not Found")) as (url, _):
        assert find_cloud(dict.fromkeys(CLOUDS, url)) is None


def test_the_cloud_that_answers_is_found():
    with FakeCloud() as fake, serve(answer("", "404 Not Found")) as (url, _):
        urls = {**dict.fromkeys(CLOUDS, url), "alibaba": fake.url}
        assert find_cloud(urls).name == "alibaba"


# ---- times ----


@given(st.integers(-(10**6), 10**6))
def test_seconds_are_of_the_clouds_own_clock(seconds):
    now = wall_time(DATE).timestamp()
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + seconds))
    assert seconds_until(text, date=DATE) == max(0, seconds)


@given(st.text(max_size=40))
def test_any_text_is_a_time_or_an_error(text):
    with contextlib.suppress(BadAnswerError):
        assert wall_time(text).tzinfo is not None


# ---- what becomes of it ----


def sighting(seconds, reason="reclaimed"):
    return Sighting(remaining_s=seconds, reason=reason)


def test_a_notice_is_told_once_sooner_ones_again_and_later_ones_never():
    first = next_notice(10.0, "a", None, sighting(120.0))
    assert first.deadline_s == 130.0
    assert next_notice(15.0, "a", first, sighting(115.9)) is None
    assert next_notice(15.0, "a", first, sighting(500.0)) is None
    sooner = next_notice(15.0, "a", first, sighting(20.0))
    assert sooner.deadline_s == 35.0
    gone = next_notice(16.0, "a", sooner, None)
    assert gone.withdrawn
    assert next_notice(17.0, "a", gone, None) is None
    assert next_notice(18.0, "a", gone, sighting(30.0)).deadline_s == 48.0


class Scripted:
    """A cloud that says what it was told to, and then the last of it again."""

    name = "scripted"

    def __init__(self, *says):
        self.says, self.number = says, 0

    def look(self):
        said = self.says[min(self.number, len(self.says) - 1)]
        self.number += 1
        if isinstance(said, Exception):
            raise said
        return said


def heard(cloud, count, **options):
    found = queue.Queue()
    with NoticeWatch(cloud, "a", found.put, interval_s=0.005, **options):
        return [found.get(timeout=60) for _ in range(count)]


def test_an_endpoint_that_falls_silent_withdraws_nothing(caplog):
    caplog.set_level(logging.WARNING)
    cloud = Scripted(sighting(50.0), OSError("no route"), sighting(50.0), None)
    first, second = heard(cloud, 2)
    assert not first.withdrawn
    assert second.withdrawn
    assert "scripted says nothing: no route" in caplog.text


def test_a_notice_that_a_cloud_holds_back_is_heard_at_once():
    with FakeCloud() as fake:
        found = queue.Queue()
        cloud = GoogleCloud(fake.url, wait_s=60.0)
        with NoticeWatch(cloud, "a", found.put, interval_s=0.05):
            time.sleep(0.2)
            fake.reclaim(30)
            assert found.get(timeout=60).remaining_s() > 0


def test_a_risk_is_heard_only_where_it_is_asked_for():
    risk = Sighting(remaining_s=9.0, reason="at risk", is_certain=False)
    assert heard(Scripted(risk), 1, heeds_risks=True)[0].reason == "at risk"
    assert heard(Scripted(risk, sighting(5.0)), 1)[0].reason == "reclaimed"


def test_a_watch_outlives_whatever_its_cloud_does(caplog):
    (notice,) = heard(Scripted(OverflowError("not thought of"), sighting(30.0)), 1)
    assert notice.reason == "reclaimed"
    assert "scripted says nothing: OverflowError('not thought of')" in caplog.text


def test_a_listener_that_fails_hears_the_next_notice(caplog):
    found = queue.Queue()

    def publish(notice):
        found.put(notice)
        if not notice.withdrawn:
            message = "no room"
            raise OSError(message)

    with NoticeWatch(Scripted(sighting(9.0), None), "a", publish, interval_s=0.005):
        assert not found.get(timeout=60).withdrawn
        assert found.get(timeout=60).withdrawn
    assert "nobody took note" in caplog.text


def test_notices_reach_whoever_is_told():
    found = queue.Queue()
    with FakeCloud() as fake:
        fake.reclaim(30)
        watch = NoticeWatch(Aws(fake.url), "node-3", found.put, interval_s=0.01)
        with watch:
            notice = found.get(timeout=60)
    assert isinstance(notice, CapacityNotice)
    assert (notice.node, notice.remaining_s() <= 30) == ("node-3", True)


def test_an_interval_that_is_none_is_refused():
    with pytest.raises(ValueError, match="interval_s"):
        NoticeWatch(Scripted(None), "a", print, interval_s=0)


# ---- Kubernetes ----


def taints(*keys):
    added = "2026-01-05T17:59:50Z"
    return {"spec": {"taints": [{"key": key, "timeAdded": added} for key in keys]}}


def test_taints_of_a_node_that_goes():
    calm = taints("node.kubernetes.io/memory-pressure")
    assert sighting_of_node(calm, date=DATE) is None
    assert sighting_of_node({}, date=DATE) is None
    spot = "aws-node-termination-handler/spot-itn"
    risk = "aws-node-termination-handler/rebalance-recommendation"
    found = sighting_of_node(taints(risk, spot), date=DATE)
    assert (found.remaining_s, found.is_certain) == (110.0, True)
    assert not sighting_of_node(taints(risk), date=DATE).is_certain
    assert sighting_of_node(taints(spot), date=DATE, grace_s=5.0).remaining_s == 0.0


def test_pods_that_are_evicted_or_deleted():
    target = {"type": "DisruptionTarget", "status": "True", "reason": "Preemption"}
    pod = {"status": {"conditions": [target]}, "spec": {}}
    assert sighting_of_pod(pod, date=DATE).remaining_s == 30.0
    pod["spec"]["terminationGracePeriodSeconds"] = 120
    assert sighting_of_pod(pod, date=DATE).remaining_s == 120.0
    pod["metadata"] = {"deletionTimestamp": "2026-01-05T18:00:07Z"}
    found = sighting_of_pod(pod, date=DATE)
    assert (found.remaining_s, "Preemption" in found.reason) == (7.0, True)
    over = {**target, "status": "False"}
    assert sighting_of_pod({"status": {"conditions": [over]}}, date=DATE) is None


def test_a_taint_that_stays_for_months_is_still_a_notice():
    name = "ToBeDeletedByClusterAutoscaler"
    taint = {"key": name, "timeAdded": "2025-01-05T18:00:00Z"}
    found = sighting_of_node({"spec": {"taints": [taint]}}, date=DATE)
    assert found.is_certain
    assert found.remaining_s == 0.0


@pytest.mark.parametrize("bad", [{"spec": 5}, {"spec": {"taints": "x"}}])
def test_what_is_no_node_is_an_error(bad):
    with pytest.raises(BadAnswerError):
        sighting_of_node(bad, date=DATE)
