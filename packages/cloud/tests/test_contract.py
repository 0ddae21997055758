"""The service `cloud_notices` keeps its contract."""

import pytest

from drivetrain_cloud.notices import Clouds, FakeCloud
from drivetrain_core.services import get_service
from drivetrain_core.testing import check_cloud_notices


@pytest.mark.parametrize("name", ["aws", "azure", "gcp", "alibaba"])
def test_clouds_keep_the_contract(name):
    with FakeCloud() as cloud:
        check_cloud_notices(
            Clouds(),
            f"{name}={cloud.url}",
            lambda: cloud.reclaim(120.0),
            cloud.withdraw,
        )


def test_service_is_found_by_its_name():
    assert isinstance(get_service("cloud_notices"), Clouds)
