"""What the package offers, and what importing it and its daemon does."""

import subprocess
import sys

import pytest

import drivetrain_checkpoint


def test_package_offers_its_public_names():
    assert sorted(drivetrain_checkpoint.__all__) == drivetrain_checkpoint.__all__
    for name in drivetrain_checkpoint.__all__:
        assert getattr(drivetrain_checkpoint, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Chekpointer'"):
        drivetrain_checkpoint.Chekpointer  # noqa: B018


@pytest.mark.parametrize("module", ["", "._daemon.service", "._daemon.client"])
def test_daemon_and_package_import_no_torch(module):
    code = (
        f"import sys, drivetrain_checkpoint{module}; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
