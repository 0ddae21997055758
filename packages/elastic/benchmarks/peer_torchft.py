"""The toy loop under torchft, as a replica group of one; and the lighthouse."""

import datetime as dt
import os
import time

from peer_toy import Toy, parser_of
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer


def serve(args):
    server = LighthouseServer(
        bind=f"127.0.0.1:{args.port}",
        min_replicas=1,
        join_timeout_ms=args.join_ms,
        quorum_tick_ms=args.tick_ms,
        heartbeat_timeout_ms=args.heartbeat_ms,
    )
    print(server.address(), flush=True)
    while True:
        time.sleep(60.0)


def train(args):
    toy = Toy(args.folder)
    replica = int(os.environ["REPLICA_GROUP_ID"])
    manager = Manager(
        pg=ProcessGroupGloo(timeout=dt.timedelta(seconds=args.timeout_s)),
        load_state_dict=toy.load_state_dict,
        state_dict=toy.state_dict,
        min_replica_size=1,
        replica_id=f"toy_{replica}",
        hostname="127.0.0.1",
        timeout=dt.timedelta(seconds=args.manager_s),
    )
    while True:
        manager.start_quorum()
        toy.compute()
        for gradient in toy.gradients():
            manager.allreduce(gradient).wait()
        commits = manager.should_commit()
        if commits:
            toy.update()
        # Who is healed has the step of the others only now.
        toy.step = manager.current_step()
        # No public name tells one quorum from the next.
        epoch = manager._quorum_id
        toy.write(replica, manager.num_participants(), epoch, dropped=not commits)


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--port", type=int, help="of the lighthouse, to be one")
    parser.add_argument("--join-ms", type=int)
    parser.add_argument("--tick-ms", type=int)
    parser.add_argument("--heartbeat-ms", type=int)
    parser.add_argument("--manager-s", type=float, help="time-out of the manager")
    args = parser.parse_args()
    (train if args.port is None else serve)(args)


if __name__ == "__main__":
    main()
