"""Scripts of Horovod that have no elastic part are trained once, and then done."""

import pytest

from drivetrain_elastic.testing import LocalJob

PLAIN = """
import sys, torch
from pathlib import Path
import horovod.torch as hvd
hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4) * (hvd.rank() + 1)).sum().backward()
    optimizer.step()
with Path(sys.argv[1], f"trained-{hvd.rank()}").open("a") as file:
    file.write(f"{hvd.size()} {model.weight.sum().item():.6f}\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "hvd.shutdown()"])
def test_script_that_is_not_elastic_is_trained_once(tmp_path, ending):
    script = tmp_path / "plain.py"
    script.write_text(PLAIN + ending)
    program = ["-m", "drivetrain_horovod.on_elastic", str(script), str(tmp_path)]
    options = ["--nproc-per-node", "2"]
    with LocalJob(tmp_path, options=options, program=program) as job:
        job.start_node()
        assert job.wait() == {"node0": 0}, job.text()
    told = [(tmp_path / f"trained-{rank}").read_text() for rank in range(2)]
    assert told[0] == told[1]
    assert told[0].count("\n") == 1
    assert told[0].startswith("2 ")


@pytest.mark.slow
def test_script_that_is_not_elastic_and_fails_is_not_done(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text(
        f"{PLAIN}\ntry:\n    raise ValueError('x')\nfinally:\n    hvd.shutdown()\n"
    )
    program = ["-m", "drivetrain_horovod.on_elastic", str(script), str(tmp_path)]
    options = ["--nproc-per-node", "1", "--standbys", "0", "--max-restarts", "1"]
    with LocalJob(tmp_path, options=options, program=program) as job:
        job.start_node()
        assert job.wait() == {"node0": 1}, job.text()
        assert "ValueError: x" in job.text()
