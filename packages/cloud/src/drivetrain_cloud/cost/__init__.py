"""What training costs: prices, the bill of a run, traces of capacity, and strategies."""

from __future__ import annotations

from drivetrain_cloud.cost.bill import Bill, NodeCost, bill_of
from drivetrain_cloud.cost.compare import (
    Outcome,
    Range,
    Scenario,
    Summary,
    simulate,
    simulate_all,
)
from drivetrain_cloud.cost.job_profile import (
    PROFILES,
    JobProfile,
    ProfileError,
    with_number,
)
from drivetrain_cloud.cost.money import (
    PriceChange,
    PriceList,
    PriceListError,
    UnknownPriceError,
)
from drivetrain_cloud.cost.price_files import read_prices, shipped_prices
from drivetrain_cloud.cost.replay import CloudTimes, Replay, Spent, replay
from drivetrain_cloud.cost.report import StrategyComparison
from drivetrain_cloud.cost.report_page import render_page, write_page
from drivetrain_cloud.cost.sensitivity import INPUTS, Effect, sensitivity
from drivetrain_cloud.cost.strategies import Strategy, usual_strategies
from drivetrain_cloud.cost.trace import (
    SHAPES,
    CapacityTrace,
    TraceError,
    TraceShape,
    draw_trace,
    read_trace,
)
from drivetrain_cloud.spot.usage_file import (
    UsageError,
    UsageRecord,
    read_usage,
    record_usage,
    write_usage,
)

__all__ = [
    "INPUTS",
    "PROFILES",
    "SHAPES",
    "Bill",
    "CapacityTrace",
    "CloudTimes",
    "Effect",
    "JobProfile",
    "NodeCost",
    "Outcome",
    "PriceChange",
    "PriceList",
    "PriceListError",
    "ProfileError",
    "Range",
    "Replay",
    "Scenario",
    "Spent",
    "Strategy",
    "StrategyComparison",
    "Summary",
    "TraceError",
    "TraceShape",
    "UnknownPriceError",
    "UsageError",
    "UsageRecord",
    "bill_of",
    "draw_trace",
    "read_prices",
    "read_trace",
    "read_usage",
    "record_usage",
    "render_page",
    "replay",
    "sensitivity",
    "shipped_prices",
    "simulate",
    "simulate_all",
    "usual_strategies",
    "with_number",
    "write_page",
    "write_usage",
]
