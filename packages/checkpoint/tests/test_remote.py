"""Object stores through fsspec: a real S3 server on this machine, and files by URL."""

import json
import os
import threading

import pytest
import torch

from drivetrain_checkpoint import (
    Checkpointer,
    CorruptCheckpointError,
    StorageError,
    list_checkpoints,
    verify,
)
from drivetrain_checkpoint._native import Progress
from drivetrain_checkpoint._storage import remote
from drivetrain_checkpoint._storage.catalog import list_saved
from drivetrain_checkpoint._storage.open import open_storage, resolve
from drivetrain_core import CheckpointError

pytestmark = pytest.mark.extra

NAME = "step-0000000001-0123456789abcdef"


@pytest.fixture(scope="module")
def server():
    """The address of an S3 server that lives as long as this file's tests."""
    from moto.server import ThreadedMotoServer

    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    found = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    found.start()
    host, port = found.get_host_and_port()
    yield f"http://{host}:{port}"
    found.stop()


@pytest.fixture
def options(server):
    return {"client_kwargs": {"endpoint_url": server}}


@pytest.fixture
def bucket(options):
    import fsspec

    fs = fsspec.filesystem("s3", **options, skip_instance_cache=True)
    if not fs.exists("bucket"):
        fs.mkdir("bucket")
    return fs


def checkpointer_of(name, options, **more):
    return Checkpointer(
        f"s3://bucket/{name}", job="remote", storage_options=options, **more
    )


@pytest.mark.slow
def test_save_reaches_an_object_store_and_comes_back(bucket, options):
    checkpointer = checkpointer_of("run", options, keep=2)
    weights = torch.arange(5_000_000.0)  # in two parts
    for step in (1, 2, 3):
        state = {"weights": weights + step, "position": step}
        assert checkpointer.save(step, state).wait(60)
    assert checkpointer.latest() == 3
    checkpointer.stop_daemon()
    state = {"weights": torch.zeros(5_000_000), "position": 0}
    again = checkpointer_of("run", options)
    assert again.restore(state) == 3
    assert torch.equal(state["weights"], weights + 3)
    assert state["position"] == 3
    again.stop_daemon()
    found = list_checkpoints("s3://bucket/run", storage_options=options)
    assert [info.step for info in found] == [2, 3]
    assert verify(found[-1].url, storage_options=options) == []
    names = {path.rpartition("/")[2] for path in bucket.find("bucket/run")}
    assert names == {"manifest.json", "rank-00000.json", "rank-00000.safetensors"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_and_the_command_line_reach_an_object_store(
    tmp_path, bucket, options, capsys
):
    import torch.distributed.checkpoint as torch_dcp

    from drivetrain_checkpoint.cli import main
    from drivetrain_checkpoint.dcp import Reader, Writer

    url = "s3://bucket/dcp"
    writer = Writer(url, job="remote", storage_options=options)
    torch_dcp.save({"a": torch.arange(5.0), "b": {1}}, storage_writer=writer)
    writer.close()
    state = {"a": torch.zeros(5), "b": None}
    reader = Reader(url, storage_options=options)
    torch_dcp.load(state, storage_reader=reader)
    assert state["a"].tolist() == [0, 1, 2, 3, 4]
    assert state["b"] == {1}
    more = ["--storage-option", f"client_kwargs={json.dumps(options['client_kwargs'])}"]
    assert main(["cp", url, str(tmp_path / "here"), *more]) == 0
    assert main(["cp", str(tmp_path / "here"), "s3://bucket/copy", *more]) == 0
    assert main(["diff", "s3://bucket/copy", url, *more]) == 0
    assert main(["gc", "s3://bucket/copy", "--keep", "1", *more]) == 0
    assert main(["ls", "s3://bucket/none", *more]) == 0
    target = tmp_path / "out"
    assert main(["convert", url, str(target), "--to", "torch", *more]) == 0
    assert torch.load(target)["a"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_object_that_changed_is_found_and_named(bucket, options):
    checkpointer = checkpointer_of("damaged", options)
    checkpointer.save(1, {"weights": torch.ones(1000)}).wait(60)
    checkpointer.stop_daemon()
    (found,) = list_checkpoints("s3://bucket/damaged", storage_options=options)
    path = f"{found.url.removeprefix('s3://')}/rank-00000.safetensors"
    content = bytearray(bucket.cat_file(path))
    content[-1] ^= 1
    bucket.pipe_file(path, bytes(content))
    (problem,) = verify(found.url, storage_options=options)
    assert "weights" in problem.because
    with pytest.raises(CorruptCheckpointError, match="weights"):
        checkpointer_of("damaged", options).restore({"weights": torch.zeros(1000)})
    bucket.rm_file(path)
    (problem,) = verify(found.url, storage_options=options)
    assert "is missing" in problem.because


@pytest.mark.slow
def test_store_that_refuses_fails_the_handle_and_the_next_save_works(bucket, options):
    url = "s3://another/run"
    checkpointer = Checkpointer(url, job="remote", storage_options=options)
    handle = checkpointer.save(1, {"weights": torch.ones(10)})
    with pytest.raises(StorageError, match="step 1 was not saved: cannot write"):
        handle.wait(60)
    assert not handle.durable
    again = checkpointer_of("nothing", options)
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        again.restore({"weights": torch.zeros(10)})
    again.stop_daemon()
    bucket.mkdir("another")
    assert checkpointer.save(2, {"weights": torch.ones(10)}).wait(60)
    checkpointer.stop_daemon()


@pytest.mark.slow
def test_upload_that_is_stopped_leaves_nothing_behind(bucket, options, monkeypatch):
    import mmap

    storage = open_storage("s3://bucket/stopped", options)
    size = 40 << 20
    memory = mmap.mmap(-1, size)
    progress = Progress()
    first = storage._fs.call_s3
    uploaded = threading.Event()

    def call(method, **about):
        answer = first(method, **about)
        if method == "upload_part":
            progress.stop = 1
            uploaded.set()
        return answer

    monkeypatch.setattr(storage._fs, "call_s3", call)
    monkeypatch.setattr(remote, "_NUM_STREAMS", 1)
    with pytest.raises(StorageError, match=r"cannot write .* cancel"):
        storage.write(NAME, "a", memoryview(memory)[:size], 1, progress)
    assert uploaded.is_set()
    assert storage.files(NAME) == {}
    uploads = first("list_multipart_uploads", Bucket="bucket")
    assert not uploads.get("Uploads")


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_every_storage_does_what_the_others_do(tmp_path, kind):
    import mmap

    url = f"file://{tmp_path}/run" if kind == "file" else "memory://run"
    storage = remote.RemoteStorage(url)
    assert storage.names() == []
    assert storage.files(NAME) == {}
    assert not storage.exists(NAME, "a")
    memory = mmap.mmap(-1, 5000)
    memory[:5000] = bytes(range(250)) * 20
    sums = storage.write(NAME, "a", memoryview(memory)[:5000], 1, Progress())
    assert len(sums) == 1
    storage.write_small(NAME, "b", b"small")
    storage.commit(NAME, "manifest.json", b"root")
    assert storage.names() == [NAME]
    assert storage.files(NAME) == {"a": 5000, "b": 5, "manifest.json": 4}
    assert storage.read(NAME, "b") == b"small"
    assert storage.ensure_durable(NAME, "manifest.json")
    target = mmap.mmap(-1, 4096)
    storage.read_into(NAME, "a", memoryview(target)[:300], 4700)
    assert target[:300] == memory[4700:5000]
    with pytest.raises(FileNotFoundError):
        storage.read(NAME, "none")
    with pytest.raises(StorageError, match="ends at byte"):
        storage.read_into(NAME, "a", memoryview(target)[:300], 4800)
    assert storage.changed_s(NAME) > 0
    assert list_saved(storage) == []  # what was committed is no manifest
    storage.remove(NAME, "manifest.json")
    assert storage.names() == []


def test_url_that_nobody_knows_is_refused():
    with pytest.raises(StorageError, match="nowhere://x cannot be reached"):
        Checkpointer("nowhere://x")
    assert resolve("file:///a/b") == "/a/b"
