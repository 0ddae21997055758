"""Writes a checkpoint of this format in one process, without a daemon."""

from __future__ import annotations

import math
import secrets
import time
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._layout.manifest import (
    ROOT_FILE,
    RankFile,
    RankManifest,
    RootManifest,
)
from drivetrain_checkpoint._layout.partition import CODES
from drivetrain_checkpoint._layout.safetensors_layout import plan_safetensors
from drivetrain_checkpoint._layout.tensor_layout import Layout, Mesh, TensorLayout
from drivetrain_checkpoint._native import BLOCK_BYTES
from drivetrain_checkpoint._storage.protocol import folder_name
from drivetrain_checkpoint._storage.write_rank import write_rank_aside
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from drivetrain_checkpoint._storage.protocol import Storage
    from drivetrain_core.services import TensorSpec


def write_checkpoint(
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
    image = plan_safetensors(
        (t.name, t.dtype, t.shape) for t in layout.tensors if math.prod(t.shape)
    )
    save_id = secrets.token_hex(8)
    about: dict[str, Any] = {"job": job, "step": step, "save_id": save_id}

    def put(view: memoryview) -> None:
        view[: len(image.header)] = image.header
        for slot in image.slots:
            fill(slot.name, view[slot.start : slot.start + slot.size_bytes])

    manifest = RankManifest(
        **about,
        rank=0,
        world_size=1,
        size_bytes=image.size_bytes,
        header_bytes=len(image.header),
        block_bytes=BLOCK_BYTES,
    )
    text = write_rank_aside(storage, manifest, put)
    root = RootManifest(
        **about,
        saved_at_ns=time.time_ns(),
        world_size=1,
        entries=entries,
        layout=layout.to_plain(),
        ranks=(RankFile.of(0, text),),
    )
    name = folder_name(step, save_id)
    storage.commit(name, ROOT_FILE, root.to_bytes())
    return name
