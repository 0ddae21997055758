"""The service `cloud_notices` keeps its contract."""

from types import SimpleNamespace

import pytest

from drivetrain_cloud.notices import (
    Azure,
    BadAnswerError,
    Clouds,
    FakeCloud,
    NoticeWatch,
)
from drivetrain_core import DrivetrainError
from drivetrain_core.services import get_service
from drivetrain_testing import check_cloud_notices


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


def test_answer_that_cannot_be_understood_is_an_error_of_the_contract():
    # An agent tells it, and its node goes all the same.
    assert issubclass(BadAnswerError, DrivetrainError)
    cloud = Azure()
    cloud._reader = SimpleNamespace(ask=lambda *_, **__: SimpleNamespace(status=503))
    watch = NoticeWatch(cloud, "a", lambda _: None)
    watch._event = "e1"
    with pytest.raises(DrivetrainError, match="expected 200 for the start of e1"):
        watch.acknowledge()


def test_fallback_without_this_package_names_it():
    with pytest.raises(ValueError, match="pip install drivetrain-cloud"):
        get_service("drivetrain-core:cloud_notices").check("auto")
