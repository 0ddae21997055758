from drivetrain_health.faults._chaos import Act as Act
from drivetrain_health.faults._chaos import Chaos as Chaos
from drivetrain_health.faults._chaos import Happening as Happening
from drivetrain_health.faults._chaos_plan import ChaosSpec as ChaosSpec
from drivetrain_health.faults._chaos_plan import Strike as Strike
from drivetrain_health.faults._chaos_plan import plan_chaos as plan_chaos
from drivetrain_health.faults._clock import skew_clock as skew_clock
from drivetrain_health.faults._disk import SmallDisk as SmallDisk
from drivetrain_health.faults._disk import limit_file_size as limit_file_size
from drivetrain_health.faults._disk import small_disk as small_disk
from drivetrain_health.faults._errors import FaultError as FaultError
from drivetrain_health.faults._errors import (
    MissingPrivilegeError as MissingPrivilegeError,
)
from drivetrain_health.faults._errors import TargetGoneError as TargetGoneError
from drivetrain_health.faults._kill import kill as kill
from drivetrain_health.faults._network import Network as Network
from drivetrain_health.faults._ongoing import Ongoing as Ongoing
from drivetrain_health.faults._privileges import missing_because as missing_because
from drivetrain_health.faults._slow import slow as slow
from drivetrain_health.faults._stop import stop as stop
from drivetrain_health.faults._target import HasPid as HasPid
from drivetrain_health.faults._target import Target as Target
