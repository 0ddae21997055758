"""Writes a checkpoint of this format in one process, without a daemon."""

from __future__ import annotations

import math
import mmap
import os
import secrets
import tempfile
import time
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._image import plan_image
from drivetrain_checkpoint._layout import Layout, Mesh, TensorLayout
from drivetrain_checkpoint._manifest import (
    ROOT_FILE,
    RankFile,
    RankManifest,
    RootManifest,
    rank_manifest_file,
    tensor_file,
)
from drivetrain_checkpoint._pieces import CODES
from drivetrain_checkpoint._storage.protocol import as_storage_error, folder_name
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from drivetrain_checkpoint._storage.protocol import Storage
    from drivetrain_core.services import TensorSpec

__all__ = ["write_alone"]

_NUM_WRITERS = 2


def write_alone(
    storage: Storage,
    tensors: Iterable[TensorSpec],
    entries: Mapping[str, Any],
    fill: Callable[[str, memoryview], object],
    *,
    job: str,
    step: int,
) -> str:
    """Writes and commits a checkpoint of one rank.

    Its image is put together in a temporary file, so that it takes little memory.

    Args:
        storage: Where it goes.
        tensors: What it holds.
        entries: The plain half of the state, as JSON.
        fill: Puts the bytes of a tensor in place.
        job: The job that it is said to be of.
        step: The step.

    Returns:
        The checkpoint's folder in the storage.

    Raises:
        CheckpointError: A tensor is of a dtype that a checkpoint cannot hold.
        StorageError: The storage fails.
    """
    every = list(tensors)
    unknown = [f"{t.name} ({t.dtype})" for t in every if t.dtype not in CODES]
    if unknown:
        message = f"a checkpoint cannot hold {', '.join(unknown[:5])}"
        raise CheckpointError(message)
    layout = Layout(
        (Mesh((1,), (0,)),),
        tuple(
            TensorLayout(t.name, CODES[t.dtype], tuple(t.global_shape), 0, ("R",), 0)
            for t in every
        ),
    )
    image = plan_image(
        (t.name, t.dtype, t.shape) for t in layout.tensors if math.prod(t.shape)
    )
    save_id = secrets.token_hex(8)
    name = folder_name(step, save_id)
    about: dict[str, Any] = {"job": job, "step": step, "save_id": save_id}
    with tempfile.TemporaryFile() as file:
        # Direct writes read whole pages.
        size = -(-image.size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        with as_storage_error("make", "a temporary file"):
            os.posix_fallocate(file.fileno(), 0, size)
        memory = mmap.mmap(file.fileno(), size)
        view = memoryview(memory)
        view[: len(image.header)] = image.header
        for slot in image.slots:
            fill(slot.name, view[slot.start : slot.start + slot.size_bytes])
        address = _native.address_of(memory)
        sums = storage.write(
            name,
            tensor_file(0),
            address,
            image.size_bytes,
            _NUM_WRITERS,
            _native.Progress(),
        )
    manifest = RankManifest(
        **about,
        rank=0,
        world_size=1,
        size_bytes=image.size_bytes,
        header_bytes=len(image.header),
        block_bytes=_native.BLOCK_BYTES,
        crc32c=tuple(sums),
    ).to_bytes()
    storage.write_small(name, rank_manifest_file(0), manifest)
    root = RootManifest(
        **about,
        saved_at_ns=time.time_ns(),
        world_size=1,
        entries=entries,
        layout=layout.to_plain(),
        ranks=(RankFile.of(0, manifest),),
    )
    storage.commit(name, ROOT_FILE, root.to_bytes())
    return name
