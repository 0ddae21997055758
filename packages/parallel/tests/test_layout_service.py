"""The service `model_layout`: its contract, and who provides it."""

from __future__ import annotations

import pytest

from drivetrain_core.services import NoModelLayout, get_service
from drivetrain_parallel import MeshLayouts
from drivetrain_testing import check_model_layout


@pytest.mark.slow
def test_mesh_layouts_keep_the_contract():
    check_model_layout()


def test_accelerate_finds_it_and_core_has_a_fallback():
    assert type(get_service("model_layout")) is MeshLayouts
    assert type(get_service("drivetrain-core:model_layout")) is NoModelLayout
