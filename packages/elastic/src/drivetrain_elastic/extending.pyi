from drivetrain_elastic._agent._require_elastic import (
    require_elastic as require_elastic,
)
from drivetrain_elastic._client._master_client import MasterClient as MasterClient
from drivetrain_elastic._client._token import make_token as make_token
from drivetrain_elastic._client._token import read_token as read_token
from drivetrain_elastic._client._token import write_token as write_token
from drivetrain_elastic._commands._address_options import addresses as addresses
from drivetrain_elastic._data._epoch_order import epoch_order as epoch_order
from drivetrain_elastic._data._epoch_order import part_of_rank as part_of_rank
from drivetrain_elastic._membership._connection import Connection as Connection
from drivetrain_elastic._membership._connection import connect as connect
from drivetrain_elastic._membership._rank_assignment import (
    RankAssignment as RankAssignment,
)
from drivetrain_elastic._membership._single_process import (
    SingleProcessMembership as SingleProcessMembership,
)
from drivetrain_elastic._membership._world import World as World
from drivetrain_elastic._membership._world import call_roll as call_roll
from drivetrain_elastic._membership._world import is_finished as is_finished
from drivetrain_elastic._membership._world import tell_finished as tell_finished
from drivetrain_elastic._membership._world_group import RankLostError as RankLostError
from drivetrain_elastic._membership._world_group import with_others as with_others
from drivetrain_elastic._observability._rate_limited_log import (
    RateLimitedLog as RateLimitedLog,
)
from drivetrain_elastic._training._state_transfer import give_state as give_state
from drivetrain_elastic._training._state_transfer import take_state as take_state
