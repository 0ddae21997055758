"""Predicts the time and memory of a training step on a mesh, without running it.

    profile = profile_transformer(layers=32, hidden=4096, heads=32, vocab=128256, seq=8192)
    hardware = Hardware.of(cluster.nodes[0])
    ranking = rank_meshes(profile, hardware, num_devices=64, global_batch=512)

All of it is arithmetic on plain data. Nothing here imports torch but `profile_module`,
when it is called.
"""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub

# Named as the modules that they come from, which would hide them.
from drivetrain_parallel.cost.predict import predict as predict
from drivetrain_parallel.cost.rank_meshes import rank_meshes as rank_meshes

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
