from drivetrain_health.checks._check_config import CheckConfig as CheckConfig
from drivetrain_health.checks._check_node import NodeReport as NodeReport
from drivetrain_health.checks._check_node import check_node as check_node
from drivetrain_health.checks._check_nodes import Together as Together
from drivetrain_health.checks._check_nodes import check_nodes as check_nodes
from drivetrain_health.checks._check_nodes import check_together as check_together
from drivetrain_health.checks._checks import CHECKS as CHECKS
from drivetrain_health.checks._rdma import plan_commands as plan_commands
from drivetrain_health.checks._silent_corruption import BitReport as BitReport
from drivetrain_health.checks._silent_corruption import probe_bits as probe_bits
from drivetrain_health.checks._tcp_rendezvous_store import (
    tcp_rendezvous_store as tcp_rendezvous_store,
)
