"""Remote storage: checkpoints in what fsspec reaches, such as object stores and HDFS.

Objects appear whole when they have been sent, so that the root manifest, sent last,
commits the save. File systems that show a file while it is being written get it under
another name, and it is renamed into place.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import logging
import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._storage.protocol import (
    Storage,
    as_storage_error,
    parse_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_checkpoint._native import Progress

logger = logging.getLogger(__name__)

_RENAMING = frozenset({"arrow_hdfs", "hdfs", "webhdfs", "sftp", "ssh", "smb", "file"})
"""Protocols whose files can be seen half written."""

# Each backend has errors of its own; all of them mean that the storage failed.
_failing = functools.partial(as_storage_error, errors=Exception)

_PART_BYTES = 16 << 20
_MOST_PARTS = 10_000
_NUM_STREAMS = 8


class RemoteStorage(Storage):
    """A folder behind an URL.

    Args:
        url: The URL, such as `s3://bucket/run`.
        options: What fsspec is to know of it: endpoints, credentials.

    Raises:
        StorageError: fsspec, or what it needs for this kind of URL, is not installed.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        protocol = url.partition("://")[0]
        try:
            import fsspec
        except ImportError as error:
            message = f"{url} needs fsspec: pip install 'drivetrain-checkpoint[remote]'"
            raise StorageError(message) from error
        try:
            # What another machine has written must be seen: nothing is remembered.
            self._fs, root = fsspec.core.url_to_fs(
                url, **{"use_listings_cache": False, **(options or {})}
            )
        except (ImportError, ValueError) as error:
            message = f"{url} cannot be reached: {error}"
            raise StorageError(message) from error
        self.url = url
        self._root = root.rstrip("/")
        self._renames = protocol in _RENAMING

    def write(
        self,
        name: str,
        file: str,
        memory: memoryview,
        num_threads: int,
        progress: Progress,
    ) -> list[int]:
        """Sends memory in parts: several at once to S3, else one after the other."""
        path = self._path(name, file)
        sums = _native.checksums(memory, num_threads)
        with _failing("write", path):
            self._make_folder(name)
            if len(memory) > _PART_BYTES and hasattr(self._fs, "call_s3"):
                self._abort_uploads(name, file)
                self._write_to_s3(path, memory, progress)
            else:
                with self._fs.open(path, "wb", block_size=_PART_BYTES) as stream:
                    for part in _native.parts(memory, _PART_BYTES):
                        _check(progress)
                        stream.write(part)
                        progress.done += len(part)
        return sums

    def write_small(self, name: str, file: str, content: bytes) -> None:
        self._send("write", name, file, content)

    def commit(self, name: str, file: str, content: bytes) -> None:
        self._send("commit", name, file, content)

    def names(self) -> list[str]:
        return [n for n in self._list(self._root) if parse_name(n)]

    def unfinished(self) -> list[str]:
        names = {self._name_of(upload["Key"]) for upload in self._uploads("")}
        return sorted(name for name in names if parse_name(name))

    def files(self, name: str) -> dict[str, int]:
        return self._list(self._path(name))

    def exists(self, name: str, file: str) -> bool:
        path = self._path(name, file)
        with _failing("look for", path):
            return bool(self._fs.exists(path))

    def ensure_durable(self, name: str, file: str) -> bool:
        """Returns whether a file is there: what can be seen here is durable."""
        return self.exists(name, file)

    def read(self, name: str, file: str) -> bytes:
        path = self._path(name, file)
        with _failing("read", path, may_miss=True):
            content: bytes = self._fs.cat_file(path)
            return content

    def read_into(self, name: str, file: str, memory: memoryview, at: int) -> None:
        """Reads several parts at once."""
        path = self._path(name, file)
        with _failing("read", path, may_miss=True):

            def read(start: int, to: memoryview) -> None:
                part = self._fs.cat_file(path, start=start, end=start + len(to))
                if len(part) != len(to):
                    raise OSError(errno.EIO, f"it ends at byte {start + len(part):,}")
                to[:] = part

            with ThreadPoolExecutor(_NUM_STREAMS) as pool:
                rooms = _native.parts(memory, _PART_BYTES)
                list(pool.map(read, itertools.count(at, _PART_BYTES), rooms))

    def changed_s(self, name: str) -> float:
        times: list[float] = [0.0]
        times += [u["Initiated"].timestamp() for u in self._uploads(name)]
        with contextlib.suppress(FileNotFoundError):
            for entry in self._fs.ls(self._path(name), detail=True):
                at = entry.get("LastModified") or entry.get("mtime")
                at = at or entry.get("created")
                stamp = at.timestamp() if hasattr(at, "timestamp") else at
                times.append(math.inf if stamp is None else float(stamp))
        return max(times)

    def remove(self, name: str, last: str) -> None:
        path = self._path(name)
        with _failing("delete", path):
            self._abort_uploads(name)
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(f"{path}/{last}")
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm(path, recursive=True)

    def _path(self, name: str, file: str = "") -> str:
        return "/".join(part for part in (self._root, name, file) if part)

    def _send(self, action: str, name: str, file: str, content: bytes) -> None:
        path = self._path(name, file)
        with _failing(action, path):
            self._make_folder(name)
            if self._renames:
                self._fs.pipe_file(f"{path}.tmp", content)
                self._fs.mv(f"{path}.tmp", path)
            else:
                self._fs.pipe_file(path, content)

    def _make_folder(self, name: str) -> None:
        """Makes a folder where there are such; an object store would make a bucket."""
        if self._renames:
            self._fs.makedirs(self._path(name), exist_ok=True)

    def _list(self, path: str) -> dict[str, int]:
        try:
            with _failing("list", path, may_miss=True):
                entries = self._fs.ls(path, detail=True)
        except FileNotFoundError:
            return {}
        return {
            e["name"].rstrip("/").rpartition("/")[2]: int(e.get("size") or 0)
            for e in entries
        }

    def _name_of(self, key: str) -> str:
        """Returns the folder that an object of S3 lies in."""
        return key.rstrip("/").split("/")[-2] if "/" in key else ""

    def _uploads(self, name: str, file: str = "") -> list[dict[str, Any]]:
        """Returns the uploads to S3 in a folder that were begun and not ended."""
        if not hasattr(self._fs, "call_s3"):
            return []
        bucket, key, _ = self._fs.split_path(self._path(name, file))
        try:
            found = self._fs.call_s3(
                "list_multipart_uploads", Bucket=bucket, Prefix=key or ""
            )
        # Not everybody who may write may list them; what is left is an owner's rule's.
        except Exception as error:  # noqa: BLE001
            logger.debug("unfinished uploads are not known: %s", error)
            return []
        uploads: list[dict[str, Any]] = found.get("Uploads", [])
        return uploads

    def _abort_uploads(self, name: str, file: str = "") -> None:
        """Gives up what a process before this one had begun to send, and did not end."""
        for upload in self._uploads(name, file):
            bucket, _, _ = self._fs.split_path(self._path(name))
            about = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
            with contextlib.suppress(FileNotFoundError):  # it has just ended
                self._fs.call_s3("abort_multipart_upload", Bucket=bucket, **about)

    def _write_to_s3(self, path: str, memory: memoryview, progress: Progress) -> None:
        call = self._fs.call_s3
        bucket, key, _ = self._fs.split_path(path)
        where = {"Bucket": bucket, "Key": key}
        upload = call("create_multipart_upload", **where)["UploadId"]
        size = max(_PART_BYTES, -(-len(memory) // _MOST_PARTS))

        def send(number: int, part: memoryview) -> dict[str, object]:
            _check(progress)
            sent = call(
                "upload_part",
                **where,
                UploadId=upload,
                PartNumber=number,
                Body=bytes(part),
            )
            progress.done += len(part)
            return {"PartNumber": number, "ETag": sent["ETag"]}

        try:
            with ThreadPoolExecutor(_NUM_STREAMS) as pool:
                whole = _native.parts(memory, size)
                parts = list(pool.map(send, itertools.count(1), whole))
            call(
                "complete_multipart_upload",
                **where,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
            )
        except BaseException:
            with contextlib.suppress(Exception):
                call("abort_multipart_upload", **where, UploadId=upload)
            raise


def _check(progress: Progress) -> None:
    if progress.stop:
        raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
