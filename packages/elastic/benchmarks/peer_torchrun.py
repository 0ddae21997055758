"""The toy loop under torchrun: it starts again from its last checkpoint."""

import datetime as dt
import os

import torch
import torch.distributed as dist
from peer_toy import Toy, parser_of

# One a second, which is more often than a real job can afford.
_STEPS_A_CHECKPOINT = 20


def main():
    args = parser_of(__doc__).parse_args()
    limits = {}
    if args.timeout_s is not None:
        limits["timeout"] = dt.timedelta(seconds=args.timeout_s)
    dist.init_process_group("gloo", **limits)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    toy = Toy(args.folder)
    path = args.folder / "checkpoint.pt"
    if path.exists():
        toy.load_state_dict(torch.load(path))
    while True:
        toy.compute()
        for gradient in toy.gradients():
            dist.all_reduce(gradient)
            gradient /= world_size
        toy.update()
        toy.write(rank, world_size, epoch=0)
        if rank == 0 and toy.step % _STEPS_A_CHECKPOINT == 0:
            part = path.with_suffix(f".{os.getpid()}")
            torch.save(toy.state_dict(), part)
            part.replace(path)


if __name__ == "__main__":
    main()
