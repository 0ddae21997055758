"""Published rows: that they are read right, and what is claimed of them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re

import pytest

from drivetrain_core._errors import ClusterSpecError
from drivetrain_parallel.simulate.ablation import (
    ABLATION,
    best_at_scale,
    predict_ablation,
)
from drivetrain_parallel.simulate.clusters import cluster_names, load_cluster
from drivetrain_parallel.simulate.published import predict_row, published_rows
from drivetrain_parallel.simulate.tables import (
    ablation_table,
    ranking_table,
    rows_table,
    summary_table,
)


@pytest.fixture(scope="module")
def outcomes():
    return [predict_row(row) for row in published_rows()]


@pytest.fixture(scope="module")
def largest():
    return best_at_scale()


def test_every_fourth_row_of_two_sources_calibrates():
    rows = published_rows()
    for source, number in (("llm-foundry", 33), ("Megatron-LM 2021", 3)):
        flags = [row.fits == "efficiency" for row in rows if row.source == source]
        assert flags == [index % 4 == 0 for index in range(len(flags))]
        assert sum(flags) == number
    assert sum(row.fits == "efficiency" for row in rows) == 36


def test_two_of_nanotrons_rows_calibrate_an_option_of_nanotron_alone():
    rows = [row for row in published_rows() if row.fits == "reduce_rate_share"]
    assert [str(row.shape) for row in rows] == [
        "shard=2 tensor=4",
        "pipeline=8 shard=2",
    ]
    assert all(row.calibrates for row in rows)
    for row in published_rows():
        has_option = "reduce_rate_share" in row.options
        assert has_option == (row.source == "nanotron")
    assert sum(row.calibrates for row in published_rows()) == 38


def test_sixteen_rows_that_test_are_within_a_tenth(outcomes):
    tests = [each for each in outcomes if not each.row.calibrates]
    near = [each for each in tests if abs(each.error) <= 0.10]
    firm = [each for each in near if not each.row.is_recalled]
    first = [each for each in tests if not each.row.is_later]
    assert (len(tests), len(first)) == (212, 135)
    assert sum(not each.row.is_later for each in near) >= 121
    assert len(firm) >= 110
    assert len({each.row.source for each in near}) >= 10


def test_rows_that_came_later_calibrate_nothing_and_six_are_within_a_tenth(outcomes):
    later = [each for each in outcomes if each.row.is_later]
    assert len(later) == 77
    near = [each for each in later if abs(each.error) <= 0.10]
    assert len(near) >= 6
    assert len({each.row.source for each in near}) >= 5
    fitted = {each.row.source for each in outcomes if each.row.calibrates}
    assert fitted.isdisjoint(each.row.source for each in later)


LATER = [row for row in published_rows() if row.is_later]


@pytest.mark.parametrize(
    "row", LATER, ids=[f"{row.source}-{i}" for i, row in enumerate(LATER)]
)
def test_later_row_is_told_in_full(row):
    assert not row.calibrates
    assert not row.is_recalled
    # A repository with a commit, or a paper with its table.
    assert re.search(r" at [0-9a-f]{7}\b|^arXiv \d{4}\.\d{5}, table", row.where)
    assert row.cluster in cluster_names()
    assert (
        row.shape.size
        <= row.global_batch
        * row.shape.tensor
        * row.shape.pipeline
        * (row.shape.context)
    )
    assert row.measured > 0


@pytest.mark.parametrize(
    ("fits", "bound"), [("efficiency", 0.033), ("reduce_rate_share", 0.006)]
)
def test_constants_fit_the_rows_that_calibrate(outcomes, fits, bound):
    errors = [math.log1p(each.error) for each in outcomes if each.row.fits == fits]
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) <= bound


def test_memory_is_within_fifteen_percent(outcomes):
    errors = [e.memory_error for e in outcomes if e.memory_error is not None]
    assert len(errors) == 9
    assert max(map(abs, errors)) <= 0.15


def test_meshes_of_nanotron_that_test_are_in_order(outcomes):
    found = [
        each
        for each in outcomes
        if each.row.source == "nanotron" and not each.row.calibrates
    ]
    assert len(found) == 3
    by_prediction = sorted(found, key=lambda each: -each.predicted)
    assert by_prediction == sorted(found, key=lambda each: -each.row.measured)


def test_only_pairs_that_errors_of_a_tenth_can_swap_are_out_of_order(outcomes):
    found = [each for each in outcomes if each.row.source == "nanotron"]
    swapped = [
        (one, other)
        for one, other in itertools.combinations(
            sorted(found, key=lambda each: -each.row.measured), 2
        )
        if one.predicted < other.predicted
    ]
    ratios = [one.row.measured / other.row.measured for one, other in swapped]
    assert ratios == pytest.approx([27800 / 25800, 11200 / 9550])
    assert max(ratios) < 1.1 / 0.9


def test_two_copies_with_small_micro_batches_are_predicted_from_the_other_two(outcomes):
    (found,) = (
        each
        for each in outcomes
        if each.row.source == "nanotron" and each.options.micro_batch == 1
    )
    assert not found.row.calibrates
    assert -0.20 <= found.error <= -0.18
    alone = dataclasses.replace(
        found.row, options={**found.row.options, "reduce_each_micro_batch": False}
    )
    assert predict_row(alone).error >= 1.5


def test_llm_foundry_models_have_the_published_parameters(outcomes):
    published = {"mpt-7b": 6_658_859_008, "mpt-70b": 64_862_437_376}
    for each in outcomes:
        if each.row.model in published and each.row.model_sizes["seq"] == 2048:
            assert each.row.profile().num_parameters == published[each.row.model]


def test_ablation_follows_megascale_at_every_step():
    found = predict_ablation()
    assert [each.step for each in found] == list(ABLATION)
    assert max(abs(each.error) for each in found) <= 0.10
    predicted = [each.predicted for each in found]
    assert predicted == sorted(predicted)


def test_a_step_changes_the_row_of_the_baseline_and_nothing_else():
    first, block, *_, last = predict_ablation()
    (baseline,) = (
        row
        for row in published_rows()
        if row.source == "MegaScale's Megatron-LM" and row.shape.size == 256
    )
    assert first.row.options == {**baseline.options, "global_batch": 256}
    assert first.row.model_sizes == baseline.model_sizes
    assert block.row.model_sizes == {**baseline.model_sizes, "parallel_block": True}
    assert last.row.shape == baseline.shape
    assert last.options.global_batch == 768
    assert [first.row.measured, last.row.measured] == [47.7, 65.3]


@pytest.mark.slow
def test_a_plan_for_the_largest_job_is_above_megascales_own(largest):
    ranking, own = largest
    assert own.mfu == pytest.approx(0.552, rel=0.10)
    best = ranking.best
    assert best.shape.size == 12288
    assert best.options.global_batch == 6144
    assert best.prediction.mfu >= 0.58
    assert best.prediction.memory_bytes < 80 * 2**30


@pytest.mark.slow
def test_tables_hold_every_row(outcomes, largest):
    assert len(rows_table(outcomes).splitlines()) == len(outcomes) + 2
    assert "[recall]" in rows_table(outcomes)
    assert "| llm-foundry | tests | 97 |" in summary_table(outcomes)
    assert "| InternLM | tests | 32 |" in summary_table(outcomes)
    assert len(ablation_table(predict_ablation()).splitlines()) == len(ABLATION) + 2
    assert len(ranking_table(largest[0], 3).splitlines()) == 5


@pytest.mark.parametrize("name", cluster_names())
def test_shipped_clusters_are_complete(name):
    spec = load_cluster(name)
    (group,) = spec.nodes
    assert spec.name == name
    assert group.devices.count == (4 if name.endswith("-4") else 8)
    assert group.devices.memory_bandwidth_bytes_per_s > 1e12
    assert group.devices.peak_flops["bfloat16"] > 1e14
    assert group.links[0].bandwidth_bytes_per_s > 1e11
    assert group.nics.rdma


def test_unknown_cluster_names_its_neighbours(tmp_path):
    with pytest.raises(ClusterSpecError, match="nearest: h100"):
        load_cluster("h10")
    with pytest.raises(ClusterSpecError, match="cannot be read"):
        load_cluster(str(tmp_path / "none.yaml"))
