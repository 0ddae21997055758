from drivetrain_parallel.cost.efficiency import Efficiency as Efficiency
from drivetrain_parallel.cost.efficiency import efficiency_of as efficiency_of
from drivetrain_parallel.cost.hardware import Hardware as Hardware
from drivetrain_parallel.cost.hardware import Path as Path
from drivetrain_parallel.cost.hardware import Probes as Probes
from drivetrain_parallel.cost.hardware import calibrate as calibrate
from drivetrain_parallel.cost.model_profile import Matmul as Matmul
from drivetrain_parallel.cost.model_profile import ModelProfile as ModelProfile
from drivetrain_parallel.cost.model_profile import Part as Part
from drivetrain_parallel.cost.module_profile import profile_module as profile_module
from drivetrain_parallel.cost.predict import Prediction as Prediction
from drivetrain_parallel.cost.predict import predict as predict
from drivetrain_parallel.cost.rank_meshes import Candidate as Candidate
from drivetrain_parallel.cost.rank_meshes import Ranking as Ranking
from drivetrain_parallel.cost.rank_meshes import Refused as Refused
from drivetrain_parallel.cost.rank_meshes import rank_meshes as rank_meshes
from drivetrain_parallel.cost.schedules import SCHEDULES as SCHEDULES
from drivetrain_parallel.cost.step_options import StepOptions as StepOptions
from drivetrain_parallel.cost.transformer_profile import (
    profile_transformer as profile_transformer,
)
