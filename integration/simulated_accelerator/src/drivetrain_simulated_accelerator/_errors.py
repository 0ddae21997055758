"""The exceptions of the simulated accelerator.

    DrivetrainError
     `- SimulatedAcceleratorError (RuntimeError)       it cannot be loaded here
         |- SimulatedAcceleratorBuildError             its library cannot be built
         `- SimulatedAcceleratorSettingsError (ValueError)  a setting is not valid

What the device itself raises while it runs is torch's: `torch.AcceleratorError`,
`torch.OutOfMemoryError`, `torch.distributed.DistBackendError`.
"""

from __future__ import annotations

from drivetrain_core import DrivetrainError


class SimulatedAcceleratorError(DrivetrainError, RuntimeError):
    """The device cannot be loaded in this process."""


class SimulatedAcceleratorBuildError(SimulatedAcceleratorError):
    """The native library cannot be built."""


class SimulatedAcceleratorSettingsError(SimulatedAcceleratorError, ValueError):
    """A setting is not known, or has a value that it cannot have."""
