from drivetrain_parallel.tensor.apply import apply_tensor_plan as apply_tensor_plan
from drivetrain_parallel.tensor.canonical import CanonicalSlice as CanonicalSlice
from drivetrain_parallel.tensor.canonical import canonical_slices as canonical_slices
from drivetrain_parallel.tensor.canonical import full_gradients as full_gradients
from drivetrain_parallel.tensor.canonical import full_parameters as full_parameters
from drivetrain_parallel.tensor.derive import (
    plan_tensor_parallel as plan_tensor_parallel,
)
from drivetrain_parallel.tensor.explain import (
    explain_tensor_plan as explain_tensor_plan,
)
from drivetrain_parallel.tensor.loss import has_split_loss as has_split_loss
from drivetrain_parallel.tensor.loss import local_loss as local_loss
from drivetrain_parallel.tensor.loss import loss_context as loss_context
from drivetrain_parallel.tensor.plan import Dropped as Dropped
from drivetrain_parallel.tensor.plan import HeadInput as HeadInput
from drivetrain_parallel.tensor.plan import ModuleStyle as ModuleStyle
from drivetrain_parallel.tensor.plan import Style as Style
from drivetrain_parallel.tensor.plan import TensorPlan as TensorPlan
from drivetrain_parallel.tensor.verify import Verdict as Verdict
from drivetrain_parallel.tensor.verify import verify_tensor_plan as verify_tensor_plan
