"""How each peer is started, by default or as it documents, and as fast as it lets one."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from peer_job import free_port

RANKS = 4
_TORCHRUN = ["-m", "torch.distributed.run"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A peer with some settings.

    Args:
        name: Of the settings.
        start: Starts the peer in a job.
        in_place: Whether the processes of survivors live on.
        refills: Whether the peer replaces whom this fault hits.
        is_slow: Whether the quick form leaves it out.
        victims: The ranks that may be hit.
        options: For `start`.
    """

    name: str
    start: Callable[..., None]
    in_place: bool = True
    refills: bool = True
    is_slow: bool = False
    victims: range = range(RANKS)
    options: dict = field(default_factory=dict)


# By default the workers' store is one of their agents, and torch 2.13 does not clear it
# when they start again: ranks of Gloo then often find the addresses of those before them
# and wait for the dead. This makes a store anew each time.
_OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def start_torchrun(job, *, timeout_s=None, env=None):
    """Four workers of one agent."""
    limits = [] if timeout_s is None else ["--timeout-s", timeout_s]
    options = ["--standalone", "--nproc-per-node", RANKS, "--max-restarts", 100]
    script = job.script("torchrun", *limits)
    job.start("node0", *_TORCHRUN, *options, *script, env=env)


def start_nodes(job, *, conf="", env=None):
    """Two workers each of two agents; the first one keeps the store."""
    port = free_port()
    for number in range(2):
        options = ["--nnodes", "1:2", "--nproc-per-node", 2, "--max-restarts", 100]
        options += ["--rdzv-backend", "c10d", "--rdzv-id", "toy"]
        options += ["--rdzv-endpoint", f"127.0.0.1:{port}"]
        options += ["--local-addr", "127.0.0.1"]
        settings = f"is_host={str(number == 0).lower()}{conf}"
        options += ["--rdzv-conf", settings]
        script = job.script("torchrun")
        job.start(f"node{number}", *_TORCHRUN, *options, *script, env=env)


# As fast as whole seconds let it be.
_QUICK_NODES = ",last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2"


def start_torchft(job, *, heartbeat_ms, join_ms, tick_ms, timeout_s, manager_s):
    """Four replica groups of one, each of an agent that starts it again."""
    port = free_port()
    limits = ["--heartbeat-ms", heartbeat_ms, "--join-ms", join_ms]
    limits += ["--tick-ms", tick_ms]
    job.start("lighthouse", *job.script("torchft", "--port", port, *limits))
    options = ["--nproc-per-node", 1, "--max-restarts", 100]
    options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    options += ["--local-addr", "127.0.0.1"]
    limits = ["--timeout-s", timeout_s, "--manager-s", manager_s]
    for number in range(RANKS):
        env = {
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
            "REPLICA_GROUP_ID": str(number),
        }
        script = job.script("torchft", *limits)
        job.start(f"replica{number}", *_TORCHRUN, *options, *script, env=env)


# The settings of its README and its example; the heartbeat's time-out is its default.
_FT_USUAL = {
    "heartbeat_ms": 5000,
    "join_ms": 10_000,
    "tick_ms": 100,
    "timeout_s": 5,
    "manager_s": 10,
}
# Heartbeats come each 100 ms. Whoever is later than a time-out costs everybody a step: at
# ten steps they are as short as one could dare, and the pause is as long as they are.
_FT_QUICK = {
    "heartbeat_ms": 500,
    "join_ms": 1000,
    "tick_ms": 10,
    "timeout_s": 0.5,
    "manager_s": 5,
}


def start_nvrx(job, *, num_spares, timeout_s=None, limits=None):
    """Four ranks that train, and as many in reserve as wanted."""
    world_size, ports = RANKS + num_spares, (free_port(), free_port())
    options = ["--num-active", RANKS, "--port", ports[1]]
    options += ["--limits", json.dumps(limits or {})]
    if timeout_s is not None:
        options += ["--timeout-s", timeout_s]
    for rank in range(world_size):
        env = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(ports[0]),
        }
        job.start(f"rank{rank}", *job.script("nvrx", *options), env=env)


# Its documentation has no lower limits, but an order: the time-out of the process group
# first, so that survivors are not taken for the one that hangs. With intervals of 0.1 s
# it took seconds longer.
_NVRX_QUICK = {
    "monitor_thread_interval": 0.25,
    "monitor_process_interval": 0.25,
    "heartbeat_interval": 0.5,
    "progress_watchdog_interval": 0.25,
    "soft_timeout": 2.0,
    "hard_timeout": 3.0,
    "heartbeat_timeout": 5.0,
    "barrier_timeout": 30.0,
    "completion_timeout": 30.0,
    "last_call_wait": 0.1,
}
# The first rank keeps the store: the job ends with it, as documented.
_NVRX_VICTIMS = range(1, RANKS)

TORCHRUN = Setup(name="default", start=start_torchrun, in_place=False)
TORCHRUN_OWN = replace(TORCHRUN, name="own store", options={"env": _OWN_STORE})
TORCHRUN_QUICK = replace(
    TORCHRUN,
    name="own store, time-out 2 s",
    options={"env": _OWN_STORE, "timeout_s": 2},
)
NODES = Setup(name="default", start=start_nodes, in_place=False, refills=False)
NODES_OWN = replace(NODES, name="own store", options={"env": _OWN_STORE})
NODES_QUICK = replace(
    NODES,
    name="own store, tuned",
    options={"env": _OWN_STORE, "conf": _QUICK_NODES},
)
TORCHFT = Setup(name="as documented", start=start_torchft, options=_FT_USUAL)
TORCHFT_QUICK = Setup(name="tuned", start=start_torchft, options=_FT_QUICK)
NVRX = Setup(
    name="default",
    start=start_nvrx,
    victims=_NVRX_VICTIMS,
    refills=False,
    options={"num_spares": 0},
)
NVRX_QUICK = Setup(
    name="tuned, one in reserve",
    start=start_nvrx,
    victims=_NVRX_VICTIMS,
    options={"num_spares": 1, "timeout_s": 1, "limits": _NVRX_QUICK},
)
