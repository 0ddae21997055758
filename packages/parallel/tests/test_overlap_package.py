"""The package's names, and that importing it imports no more than what is asked for."""

import subprocess
import sys

import pytest

from drivetrain_parallel import overlap


def test_all_is_sorted_and_there():
    assert overlap.__all__ == sorted(overlap.__all__)
    assert dir(overlap) == overlap.__all__
    for name in overlap.__all__:
        assert getattr(overlap, name).__name__ == name


@pytest.mark.slow
def test_products_do_not_import_fsdp_or_pipelining():
    program = (
        "import sys; from drivetrain_parallel.overlap import all_gather_matmul; "
        "print([n for n in sys.modules if n.startswith(('torch.distributed.fsdp', "
        "'torch.distributed.pipelining', 'torch.distributed.tensor.parallel'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
