"""A script of elastic Horovod, which writes down what its steps were; run by tests.

`python -m drivetrain_horovod.on_elastic horovod_story.py --out FILE` runs it as it is.
"""

import argparse
import json
import time
from pathlib import Path

import horovod.torch as hvd
import torch

NUM_SAMPLES, BATCH = 46, 2


def make_model():
    """Returns a model, an optimizer with a state, and the data."""
    torch.manual_seed(3)
    layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    model = torch.nn.Sequential(*layers).double()
    x = torch.rand(NUM_SAMPLES, 4, dtype=torch.float64)
    return model, torch.optim.AdamW(model.parameters(), lr=0.02), x


def part_loss(model, x, indices):
    """Returns the loss of some samples."""
    return (model(x[indices]) - x[indices].sum(1, keepdim=True)).square().mean()


def train(num_epochs, *, commit_every=1, pause_s=0.0, after=lambda state: None):
    """Trains, and returns the state; `after` is called after each batch."""
    hvd.init()
    model, optimizer, x = make_model()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(range(NUM_SAMPLES), seed=5)
    state = hvd.elastic.TorchState(
        model=model, optimizer=optimizer, sampler=sampler, steps=[], sizes=[]
    )
    state.register_reset_callbacks([lambda: state.sizes.append(hvd.size())])

    @hvd.elastic.run
    def run(state):
        while state.sampler.epoch < num_epochs:
            begin = state.sampler.processed_num
            num = len(list(state.sampler))
            for at in range(-(-num // BATCH)):
                indices = state.sampler.get_indices(at, BATCH)
                optimizer.zero_grad()
                part_loss(model, x, indices).backward()
                optimizer.step()
                state.sampler.record_batch(at, len(indices))
                step = [state.sampler.epoch, begin, at, hvd.size(), len(indices)]
                state.steps = [*state.steps, step]
                time.sleep(pause_s)
                after(state)
                if len(state.steps) % commit_every == 0:
                    state.commit()
            state.sampler.set_epoch(state.sampler.epoch + 1)
        return state

    return run(state)


def parameters_of(state):
    """Returns all parameters, as numbers."""
    flat = torch.cat([one.detach().reshape(-1) for one in state.model.parameters()])
    return flat.tolist()


def main():
    """Trains as the arguments say; rank 0 writes what the steps were."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pause-s", type=float, default=0.0)
    args = parser.parse_args()
    state = train(args.epochs, pause_s=args.pause_s)
    if hvd.rank() == 0:
        told = {"steps": state.steps, "parameters": parameters_of(state)}
        args.out.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
