"""The toy loop in the in-process wrapper of nvidia-resiliency-ext."""

import datetime as dt
import json
import os

import torch
import torch.distributed as dist
from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.inprocess.rank_assignment import (
    MaxActiveWorldSize,
    ShiftRanks,
)
from peer_toy import Toy, parser_of


class Job:
    """What outlives a restart: the store, and the model with its steps."""

    def __init__(self, args):
        self.args = args
        self.toy = Toy(args.folder)
        self.store = None

    def join(self, iteration):
        """Makes the process group of an iteration, in the same store each time."""
        if self.store is None:
            self.store = dist.TCPStore(
                "127.0.0.1",
                self.args.port,
                is_master=self.args.is_first,
                wait_for_workers=False,
            )
        limits = {}
        if self.args.timeout_s is not None:
            limits["timeout"] = dt.timedelta(seconds=self.args.timeout_s)
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(str(iteration), self.store),
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            **limits,
        )

    def train(self, iteration):
        self.join(iteration)
        self.take_state()
        rank, world_size = dist.get_rank(), dist.get_world_size()
        while True:
            self.toy.compute()
            for gradient in self.toy.gradients():
                dist.all_reduce(gradient)
                gradient /= world_size
            self.toy.update()
            self.toy.write(rank, world_size, iteration)

    def take_state(self):
        """Takes the state of rank 0: the others may be one step ahead, or new."""
        step = torch.tensor([self.toy.step])
        for tensor in [step, *self.toy.model.state_dict().values()]:
            dist.broadcast(tensor, 0)
        self.toy.step = int(step)


def run(job, wrapped: inprocess.CallWrapper = None):
    """Runs an iteration; whatever ends it, nobody may wait for this rank's sockets."""
    try:
        job.train(wrapped.iteration)
    except RuntimeError as error:
        # Its traceback would keep the process group, and with it the sockets, alive.
        words = str(error)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    raise RuntimeError(words)


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--port", type=int, help="of the process group's store")
    parser.add_argument("--num-active", type=int, help="ranks that train")
    parser.add_argument("--limits", default="{}", help="of the wrapper, in s, as JSON")
    args = parser.parse_args()
    args.is_first = os.environ["RANK"] == "0"
    limits = json.loads(args.limits)
    wrapper = inprocess.Wrapper(
        rank_assignment=inprocess.Compose(
            MaxActiveWorldSize(args.num_active), ShiftRanks()
        ),
        **{name: dt.timedelta(seconds=value) for name, value in limits.items()},
    )
    wrapper(run)(Job(args))


if __name__ == "__main__":
    main()
