from drivetrain_comm._enable import BACKEND as BACKEND
from drivetrain_comm._enable import disable as disable
from drivetrain_comm._enable import enable as enable
from drivetrain_comm._enable import is_enabled as is_enabled
from drivetrain_comm._enable import register as register
from drivetrain_comm._enable import status as status
from drivetrain_comm._settings import Settings as Settings
from drivetrain_comm._version import __version__ as __version__
from drivetrain_comm.backend._process_group import (
    TunedProcessGroup as TunedProcessGroup,
)
from drivetrain_comm.backend._process_group import (
    TunedProcessGroupFactory as TunedProcessGroupFactory,
)
from drivetrain_comm.selection._choice import Choice as Choice
