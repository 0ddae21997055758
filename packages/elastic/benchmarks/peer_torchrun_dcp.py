"""The toy loop under torchrun, with checkpoints by torch.distributed.checkpoint."""

import datetime as dt
import shutil

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from peer_toy import Toy, parser_of

# Every ten seconds: what a real job saves takes longer, and is saved less often.
_STEPS_A_CHECKPOINT = 200


def main():
    args = parser_of(__doc__).parse_args()
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=args.timeout_s))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    toy = Toy(args.folder)
    done = sorted(args.folder.glob("checkpoint-*/.metadata"))
    if done:
        state = toy.state_dict()
        dcp.load(state, checkpoint_id=done[-1].parent)
        toy.load_state_dict(state)
    while True:
        toy.compute()
        for gradient in toy.gradients():
            dist.all_reduce(gradient)
            gradient /= world_size
        toy.update()
        toy.write(rank, world_size, epoch=0)
        if toy.step % _STEPS_A_CHECKPOINT == 0:
            path = args.folder / f"checkpoint-{toy.step:09}"
            dcp.save(toy.state_dict(), checkpoint_id=path)
            if rank == 0:
                for old in sorted(args.folder.glob("checkpoint-*"))[:-2]:
                    shutil.rmtree(old)


if __name__ == "__main__":
    main()
