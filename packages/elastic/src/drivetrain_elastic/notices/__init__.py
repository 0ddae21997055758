"""Notices that a node will be taken away: what clouds say, and who hears of it."""

from __future__ import annotations

from drivetrain_elastic.notices.alibaba_cloud import AlibabaCloud
from drivetrain_elastic.notices.aws import Aws
from drivetrain_elastic.notices.azure import Azure
from drivetrain_elastic.notices.fake_cloud import FakeCloud
from drivetrain_elastic.notices.find_cloud import CLOUDS, cloud_of, find_cloud
from drivetrain_elastic.notices.google_cloud import GoogleCloud
from drivetrain_elastic.notices.kubernetes import sighting_of_node, sighting_of_pod
from drivetrain_elastic.notices.metadata_reader import Answer, MetadataReader
from drivetrain_elastic.notices.sighting import BadAnswerError, Cloud, Sighting
from drivetrain_elastic.notices.watch import NoticeWatch

__all__ = [
    "CLOUDS",
    "AlibabaCloud",
    "Answer",
    "Aws",
    "Azure",
    "BadAnswerError",
    "Cloud",
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
