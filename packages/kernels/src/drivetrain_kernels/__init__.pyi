from drivetrain_kernels._errors import DeviceError as DeviceError
from drivetrain_kernels._errors import DtypeError as DtypeError
from drivetrain_kernels._errors import ImplementationError as ImplementationError
from drivetrain_kernels._errors import (
    ImplementationNameError as ImplementationNameError,
)
from drivetrain_kernels._errors import IndexRangeError as IndexRangeError
from drivetrain_kernels._errors import OptionError as OptionError
from drivetrain_kernels._errors import ReplacementError as ReplacementError
from drivetrain_kernels._errors import SelectionError as SelectionError
from drivetrain_kernels._errors import ShapeError as ShapeError
from drivetrain_kernels._explain import Explanation as Explanation
from drivetrain_kernels._explain import explain as explain
from drivetrain_kernels._mixture import MoE as MoE
from drivetrain_kernels._modules import GEGLU as GEGLU
from drivetrain_kernels._modules import AddRMSNorm as AddRMSNorm
from drivetrain_kernels._modules import LayerNorm as LayerNorm
from drivetrain_kernels._modules import RMSNorm as RMSNorm
from drivetrain_kernels._modules import RotaryEmbedding as RotaryEmbedding
from drivetrain_kernels._modules import SwiGLU as SwiGLU
from drivetrain_kernels._transformer_blocks import ParallelBlock as ParallelBlock
from drivetrain_kernels._transformer_blocks import SerialBlock as SerialBlock
from drivetrain_kernels._version import __version__ as __version__
from drivetrain_kernels.ops._add_rms_norm import add_rms_norm as add_rms_norm
from drivetrain_kernels.ops._attention import attention as attention
from drivetrain_kernels.ops._clip_grad_norm import clip_grad_norm_ as clip_grad_norm_
from drivetrain_kernels.ops._cross_entropy import cross_entropy as cross_entropy
from drivetrain_kernels.ops._dropout_add_rms_norm import (
    dropout_add_rms_norm as dropout_add_rms_norm,
)
from drivetrain_kernels.ops._geglu import geglu as geglu
from drivetrain_kernels.ops._layer_norm import layer_norm as layer_norm
from drivetrain_kernels.ops._linear_cross_entropy import (
    linear_cross_entropy as linear_cross_entropy,
)
from drivetrain_kernels.ops._moe import MoEResult as MoEResult
from drivetrain_kernels.ops._moe import moe as moe
from drivetrain_kernels.ops._parallel_block import parallel_block as parallel_block
from drivetrain_kernels.ops._rms_norm import rms_norm as rms_norm
from drivetrain_kernels.ops._rope import rope as rope
from drivetrain_kernels.ops._swiglu import swiglu as swiglu
from drivetrain_kernels.replacement._handle import Left as Left
from drivetrain_kernels.replacement._handle import Replaced as Replaced
from drivetrain_kernels.replacement._handle import Replacement as Replacement
from drivetrain_kernels.replacement._replace import replace as replace
from drivetrain_kernels.selector._decide import Trial as Trial
from drivetrain_kernels.selector._select import Selected as Selected
from drivetrain_kernels.selector._select import select as select
from drivetrain_kernels.selector._watch import Watch as Watch
