from drivetrain_core.accelerators._isolated_rng import isolated_rng as isolated_rng
from drivetrain_core.accelerators._lookup import accelerator_of as accelerator_of
from drivetrain_core.accelerators._torch_accelerator import (
    TorchAccelerator as TorchAccelerator,
)
from drivetrain_core.accelerators.accelerator import Accelerator as Accelerator
from drivetrain_core.accelerators.facts import AcceleratorFacts as AcceleratorFacts
