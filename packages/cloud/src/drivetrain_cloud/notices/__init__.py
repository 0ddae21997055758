"""Notices that a node will be taken away: what clouds say, and who hears of it."""

from __future__ import annotations

from drivetrain_cloud.notices.alibaba_cloud import AlibabaCloud
from drivetrain_cloud.notices.aws import Aws
from drivetrain_cloud.notices.azure import Azure
from drivetrain_cloud.notices.fake_cloud import FakeCloud
from drivetrain_cloud.notices.find_cloud import CLOUDS, cloud_of, find_cloud
from drivetrain_cloud.notices.google_cloud import GoogleCloud
from drivetrain_cloud.notices.kubernetes import sighting_of_node, sighting_of_pod
from drivetrain_cloud.notices.metadata_reader import Answer, MetadataReader
from drivetrain_cloud.notices.service import Clouds
from drivetrain_cloud.notices.sighting import BadAnswerError, Cloud, Sighting
from drivetrain_cloud.notices.watch import NoticeWatch

__all__ = [
    "CLOUDS",
    "AlibabaCloud",
    "Answer",
    "Aws",
    "Azure",
    "BadAnswerError",
    "Cloud",
    "Clouds",
    "FakeCloud",
    "GoogleCloud",
    "MetadataReader",
    "NoticeWatch",
    "Sighting",
    "cloud_of",
    "find_cloud",
    "sighting_of_node",
    "sighting_of_pod",
]
