"""`torch.save`, as it is and with what makes it durable."""

import os

import torch

from methods._method import Method


class TorchSave(Method):
    """`torch.save` to a file."""

    storage = "not synced"

    def save(self, step):
        torch.save(self.state, self.path(step))

    def load(self, step):
        loaded = torch.load(self.path(step), weights_only=True)
        for name, tensor in self.state.items():
            tensor.copy_(loaded[name])


class SyncedTorchSave(TorchSave):
    """`torch.save` to a file that is synced, in a folder that is."""

    storage = "synced"

    def save(self, step):
        with self.path(step).open("wb") as file:
            torch.save(self.state, file)
            file.flush()
            os.fsync(file.fileno())
        fd = os.open(self.place.folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
