"""Object stores in trouble: throttled, away, slow to list, and killed in an upload."""

import mmap
import os
import signal
import threading
import time

import pytest
import torch

from drivetrain_checkpoint import Checkpointer, list_checkpoints, load
from drivetrain_checkpoint._daemon.client import visit
from drivetrain_checkpoint._native import Progress
from drivetrain_checkpoint._storage import remote
from drivetrain_checkpoint._storage.catalog import abandoned
from drivetrain_checkpoint._storage.open import open_storage

pytestmark = [pytest.mark.extra, pytest.mark.slow]

NAME = "step-0000000001-0123456789abcdef"
URL = "s3://trouble/run"
_SLOW_DOWN = (
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message>"
    b"</Error>"
)


class Front:
    """An S3 server that answers with 503 where a test says so.

    Attributes:
        refuses: Given the method, and the path with its query, says whether it does.
        seen: What came and was not refused, in order.
    """

    def __init__(self, app):
        self._app = app
        self.reset()

    def reset(self):
        self.refuses = lambda _method, _path: False
        self.seen = []

    def __call__(self, environ, start_response):
        method = environ["REQUEST_METHOD"]
        path = f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        if self.refuses(method, path):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("503 Slow Down", [("Content-Type", "application/xml")])
            return [_SLOW_DOWN]
        self.seen.append((method, path))
        return self._app(environ, start_response)


@pytest.fixture(scope="module")
def front():
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        os.environ.setdefault(f"AWS_{name}", "test")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    found = Front(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, found, threaded=True)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    yield found
    server.shutdown()
    serving.join(60)
    server.server_close()


@pytest.fixture
def options(front):
    front.reset()
    # What s3fs retries itself waits shorter than what its library does.
    few = {"retries": {"max_attempts": 0}}
    found = {"client_kwargs": {"endpoint_url": front.url}, "config_kwargs": few}
    import fsspec

    fs = fsspec.filesystem("s3", **found, skip_instance_cache=True)
    if fs.exists("trouble"):
        fs.rm("trouble", recursive=True)
    fs.mkdir("trouble")
    yield found
    front.reset()


def uploads(storage):
    found = storage._fs.call_s3("list_multipart_uploads", Bucket="trouble")
    return found.get("Uploads") or []


def begun(storage, name):
    """Begins an upload as a process does that is killed then."""
    key = f"run/{name}/rank-00000.safetensors"
    storage._fs.call_s3("create_multipart_upload", Bucket="trouble", Key=key)


def large():
    return memoryview(mmap.mmap(-1, 40 << 20))


def state_of(value, size=10):
    return {"w": torch.full((size,), float(value))}


def test_store_that_throttles_gets_all_in_the_end(front, options):
    first = set()

    def refuses(method, path):
        is_new = (method, path) not in first
        first.add((method, path))
        return is_new and method != "HEAD"

    front.refuses = refuses
    storage = open_storage(URL, options)
    storage.write(NAME, "rank-00000.safetensors", large(), 1, Progress())
    storage.commit(NAME, "manifest.json", b"root")
    assert storage.files(NAME) == {
        "rank-00000.safetensors": 40 << 20,
        "manifest.json": 4,
    }
    assert not uploads(storage)
    num_parts = sum("partNumber" in path for _, path in front.seen)
    assert num_parts == 3


def test_what_waited_for_a_store_that_was_away_is_written_in_order(front, options):
    checkpointer = Checkpointer(
        URL, job="away", storage_options=options, policy="skip", keep=None
    )
    assert checkpointer.save(1, state_of(1)).wait(60)
    before = visit("away", URL, {"op": "status"})["ranks"]["0"]["memory_bytes"]
    front.refuses = lambda _method, _path: True
    for step in (2, 3):
        checkpointer.save(step, state_of(step))
    deadline = time.monotonic() + 120
    while len(visit("away", URL, {"op": "status"})["failures"]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    front.seen.clear()
    front.refuses = lambda _method, _path: False
    while len(list_checkpoints(URL, storage_options=options)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    status = visit("away", URL, {"op": "status"})
    checkpointer.stop_daemon()
    assert status["ranks"]["0"]["memory_bytes"] == before
    puts = [path for method, path in front.seen if method == "PUT"]
    commits = [path for path in puts if "manifest.json" in path]
    assert ["step-0000000002" in path for path in commits] == [True, False]


def test_upload_of_a_daemon_that_is_killed_leaves_nothing_behind(
    front, options, daemon_of
):
    checkpointer = Checkpointer(URL, job="killed", storage_options=options)
    assert checkpointer.save(1, state_of(1, 10_000_000)).wait(60)
    killed = threading.Event()
    pid = daemon_of()

    def refuses(_method, path):
        if "partNumber=2" in path and not killed.is_set():
            os.kill(pid, signal.SIGKILL)
            killed.set()
        return False

    front.refuses = refuses
    handle = checkpointer.save(2, state_of(2, 10_000_000))
    assert handle.wait(120)
    assert killed.is_set()
    checkpointer.stop_daemon()
    into = state_of(0, 10_000_000)
    load(URL, into, storage_options=options)
    assert torch.equal(into["w"], state_of(2, 10_000_000)["w"])
    assert not uploads(open_storage(URL, options))


def test_upload_that_nobody_will_end_is_abandoned_after_hours(options):
    storage = open_storage(URL, options)
    begun(storage, NAME)
    begun(storage, "else")  # not a save's
    assert storage.names() == []
    assert storage.unfinished() == [NAME]
    at = storage.changed_s(NAME)  # as the store says
    assert at > 0
    assert abandoned(storage, at + 3600) == []
    assert abandoned(storage, at + 7 * 3600) == [NAME]
    storage.remove(NAME, "manifest.json")
    assert [upload["Key"].split("/")[1] for upload in uploads(storage)] == ["else"]
    assert storage.unfinished() == []


def test_uploads_that_may_not_be_listed_keep_no_save_away(front, options):
    storage = open_storage(URL, options)
    front.refuses = lambda method, path: method == "GET" and "uploads" in path
    storage.write(NAME, "rank-00000.safetensors", large(), 1, Progress())
    assert storage.unfinished() == []
    assert storage.files(NAME) == {"rank-00000.safetensors": 40 << 20}
    storage.remove(NAME, "manifest.json")
    assert storage.files(NAME) == {}


def test_listing_that_lags_hides_no_file_from_a_reader(options, monkeypatch):
    checkpointer = Checkpointer(URL, job="lags", storage_options=options)
    assert checkpointer.save(1, state_of(1)).wait(60)
    checkpointer.stop_daemon()
    monkeypatch.setattr(remote.RemoteStorage, "files", lambda *_: {})
    into = state_of(0)
    load(URL, into, storage_options=options)
    assert torch.equal(into["w"], state_of(1)["w"])
