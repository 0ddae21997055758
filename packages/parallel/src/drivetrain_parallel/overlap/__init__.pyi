from drivetrain_parallel.overlap._errors import OverlapError as OverlapError
from drivetrain_parallel.overlap._first_unshard import (
    FirstUnshardLoader as FirstUnshardLoader,
)
from drivetrain_parallel.overlap._first_unshard import (
    prefetch_first_unshard as prefetch_first_unshard,
)
from drivetrain_parallel.overlap._schedule_1f1b import (
    DecoupledSchedule1F1B as DecoupledSchedule1F1B,
)
from drivetrain_parallel.overlap._styles import (
    OverlappedColwiseParallel as OverlappedColwiseParallel,
)
from drivetrain_parallel.overlap._styles import (
    OverlappedRowwiseParallel as OverlappedRowwiseParallel,
)
from drivetrain_parallel.overlap._tensor_parallel import (
    all_gather_matmul as all_gather_matmul,
)
from drivetrain_parallel.overlap._tensor_parallel import (
    matmul_reduce_scatter as matmul_reduce_scatter,
)
