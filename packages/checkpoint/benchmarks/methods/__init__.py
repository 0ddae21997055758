"""The ways to save that are compared, by the names that the tables have."""

from importlib import import_module

__all__ = ["METHODS", "method_of"]

METHODS = {
    "drivetrain-checkpoint": "ours.Ours",
    "drivetrain-checkpoint, prewarm": "ours.Prepared",
    "torch.save": "torch_save.TorchSave",
    "torch.save + fsync": "torch_save.SyncedTorchSave",
    "dcp.save": "dcp.Blocking",
    "dcp.save, 2 threads": "dcp.BlockingTwoThreads",
    "dcp.async_save, thread": "dcp.Asynchronous",
    "dcp.async_save, thread, kept shared memory": "dcp.ReusedAsynchronous",
    "dcp.async_save, process": "dcp.Process",
    "dcp.async_save, process, kept shared memory": "dcp.ReusedProcess",
    "DLRover Flash Checkpoint": "dlrover.FlashCheckpoint",
    "nvidia-resiliency-ext": "resiliency.CallsQueue",
    "torch_checkpointing": "manager.Manager",
}


def method_of(name):
    """The class of a way to save; what it needs is imported now."""
    module, _, kind = METHODS[name].partition(".")
    return getattr(import_module(f"methods.{module}"), kind)
