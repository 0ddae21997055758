from drivetrain_health.diagnosis._error_record import (
    install_error_record as install_error_record,
)
from drivetrain_health.diagnosis._error_record import (
    read_error_record as read_error_record,
)
from drivetrain_health.diagnosis._error_record import (
    write_error_record as write_error_record,
)
from drivetrain_health.diagnosis._gpus import GpuWatch as GpuWatch
from drivetrain_health.diagnosis._kernel_log import KernelLog as KernelLog
from drivetrain_health.diagnosis._kernel_log import KernelMessage as KernelMessage
from drivetrain_health.diagnosis._network import NetworkSampler as NetworkSampler
from drivetrain_health.diagnosis._oom_kills import count_oom_kills as count_oom_kills
from drivetrain_health.diagnosis._read_output import read_output as read_output
