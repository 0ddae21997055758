"""The classes of the messages; their types stand beside this file, for type checkers."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FILE = "elastic.desc"


def _load() -> Any:
    described = files(__package__).joinpath(_FILE).read_bytes()
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(described).file
    # A pool of its own: another package may know a file of the same name.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindFileByName(file.name)


DESCRIPTOR = _load()
globals().update(
    {
        name: message_factory.GetMessageClass(described)
        for name, described in DESCRIPTOR.message_types_by_name.items()
    }
)
