"""Finds out to which cloud this node belongs."""

from __future__ import annotations

import concurrent.futures
import contextlib
from typing import TYPE_CHECKING

from drivetrain_cloud.notices.alibaba_cloud import AlibabaCloud
from drivetrain_cloud.notices.aws import Aws
from drivetrain_cloud.notices.azure import Azure
from drivetrain_cloud.notices.google_cloud import GoogleCloud
from drivetrain_cloud.notices.sighting import BadAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drivetrain_cloud.notices.sighting import Cloud

CLOUDS: Mapping[str, Callable[..., Cloud]] = {
    "gcp": GoogleCloud,
    "azure": Azure,
    "alibaba": AlibabaCloud,
    "aws": Aws,
}
"""Clouds by name. What gives tokens to anybody is asked last."""


def cloud_of(text: str) -> Cloud:
    """Returns the cloud that a user named.

    Args:
        text: A name of `CLOUDS`, or one with the URL of its endpoint, as in
            `aws=http://127.0.0.1:9000`.

    Raises:
        ValueError: There is no such cloud, or the URL is none.

    Example:
        >>> cloud_of("gcp").name
        'gcp'
        >>> cloud_of("ibm")
        Traceback (most recent call last):
        ValueError: expected one of gcp, azure, alibaba, aws, got 'ibm'
    """
    name, mark, url = text.partition("=")
    if name not in CLOUDS:
        message = f"expected one of {', '.join(CLOUDS)}, got {name!r}"
        raise ValueError(message)
    return CLOUDS[name](url) if mark else CLOUDS[name]()


def find_cloud(urls: Mapping[str, str] | None = None) -> Cloud | None:
    """Returns the cloud whose metadata endpoint answers here; None if none does.

    All are asked at once, which takes two seconds where there is none.

    Args:
        urls: Endpoints by the name of the cloud, instead of those that all clouds have.
    """
    urls = urls or {}
    clouds = [make(urls[n]) if n in urls else make() for n, make in CLOUDS.items()]
    with concurrent.futures.ThreadPoolExecutor(len(clouds)) as pool:
        for cloud, is_here in zip(clouds, pool.map(_is_here, clouds), strict=True):
            if is_here:
                return cloud
    return None


def _is_here(cloud: Cloud) -> bool:
    with contextlib.suppress(OSError, BadAnswerError):
        return cloud.is_here()
    return False
