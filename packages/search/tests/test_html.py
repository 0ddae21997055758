"""The report as a page: whole, well-formed, and safe with foreign text."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core import Choice, Measurement, Plan, Reason, Rejected
from drivetrain_core.cli import main
from drivetrain_core.drawing.svg import Axis, clean
from drivetrain_search import Report, TrialRecord, command
from drivetrain_search.final import Comparison
from drivetrain_search.prediction.memory_model import Forecast
from drivetrain_search.report.html import render_page, require_writable_page

EVIL = "</script></title><script>alert(1)</script>\"'<img src=x onerror=alert(2)>&amp;"
FAST = (Choice("compile", {"scope": "block"}),)
FOREIGN = (Choice(EVIL, {EVIL: EVIL}),)
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """What a browser would see: tags, attributes, and whether they are closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def measurement(step_s=0.5, *, num=12, memory=1 << 30, tokens=None):
    times = tuple(step_s * (1 + n / 100) for n in range(num))
    return Measurement(
        step_times_s=times,
        samples_per_step=8,
        tokens_per_step=tokens,
        peak_memory_bytes=memory,
    )


def trial(name, choices=(), seconds=2.0, **fields):
    return TrialRecord(name=name, choices=choices, seconds=seconds, **fields)


@pytest.fixture
def report():
    base, fast = measurement(), measurement(0.25)
    return Report(
        trials=(
            trial("t01", measurement=base),
            trial(
                "t02", FAST, measurement=fast, guard={"loss_rel": 1e-7}, started_s=2.0
            ),
            trial("t03", FOREIGN, code=EVIL, because=EVIL, log=EVIL, started_s=4.0),
            trial("t04", FOREIGN, measurement=fast, code="NUMERICS", because="wrong"),
            trial("t05", (Choice("b", {}),), measurement=base, cached=True),
        ),
        chosen=FAST,
        seconds=9.5,
        stopped=EVIL,
        plan=Plan(
            choices=FAST,
            made={EVIL: EVIL, "torch": "2.13"},
            measured={"vs_baseline": 2.0},
            why=(Reason(slot=EVIL, chose=EVIL, because=EVIL),),
            rejected=(Rejected(plan=EVIL, code=EVIL, because=EVIL, fix=EVIL),),
        ),
        comparison=Comparison(baseline=base, plan=fast, speedup=2.0, low=1.9, high=2.1),
        forecasts={"t02": Forecast(step_time_s=0.5, because=EVIL)},
    )


def drawings(text):
    return [ET.fromstring(s) for s in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def test_page_holds_four_plots_and_all_tables(report):
    page = Page(render_page(report))
    assert page.tags.count("svg") == 4
    words = " ".join(page.texts)
    headings = ("Speed", "Memory against speed", "The search over time", "The final")
    tables = ("Trials", "The plan", "Rejected", "Forecasts", "Surroundings")
    for heading in (*headings, *tables, "Logs of what failed"):
        assert heading in page.texts
    assert "2.00 times as fast as the baseline in the final" in words
    assert {"2.13", "2.00x", "chosen", "cached", "loss rel", "1e-07"} <= set(page.texts)
    assert "0.51" in page.texts  # measured, over what was forecast


def test_foreign_text_makes_no_tag_and_stays_readable(report):
    text = render_page(report)
    page = Page(text)
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert EVIL in page.texts
    assert "alert(1)</script>" not in text


def test_page_needs_nothing_else(report):
    text = render_page(report)
    page = Page(text)
    assert {"link", "iframe", "img", "object"} & set(page.tags) == set()
    names = {name for name, _ in page.attributes}
    assert {"src", "href", "style"} & names == set()
    assert "url(" not in text
    assert "@import" not in text
    (policy,) = [v for n, v in page.attributes if v and "default-src" in v]
    assert policy.startswith("default-src 'none'")


def test_plots_are_named_for_those_who_do_not_see_them(report):
    for svg in drawings(render_page(report)):
        title, about = svg[0], svg[1]
        assert svg.get("role") == "img"
        assert svg.get("aria-labelledby") == f"{title.get('id')} {about.get('id')}"
        assert title.text
        assert about.text


def test_page_follows_the_colours_of_the_reader(report):
    text = render_page(report)
    assert "prefers-color-scheme: dark" in text
    assert 'name="color-scheme" content="light dark"' in text


REPORTS = {
    "baseline alone": {"trials": 1},
    "no memory": {"memory": 0},
    "one step each": {"num": 1},
    "very slow": {"step_s": 1e6},
    "very fast": {"step_s": 1e-9},
}


@pytest.mark.parametrize("case", REPORTS)
def test_page_of_a_bare_report(case):
    fields = dict(REPORTS[case])
    count = fields.pop("trials", 3)
    trials = tuple(
        trial(f"t{n}", (Choice("a", {"n": n}),) * n, measurement=measurement(**fields))
        for n in range(count)
    )
    report = Report(trials=trials, chosen=(), seconds=1.0, stopped="done")
    text = render_page(report)
    Page(text)
    assert len(drawings(text)) == 3
    assert "There was no final" in text
    assert "nan" not in text
    assert "inf" not in re.sub("[a-z]*info?[a-z]*|infer", "", text)


def test_page_of_a_search_in_which_all_failed():
    trials = (trial("t01", code="HANG", because="late"), trial("t02", FAST, code="X"))
    report = Report(trials=trials, chosen=(), seconds=0.0, stopped="")
    text = render_page(report)
    Page(text)
    assert "No trial was measured." in text
    assert text.count("late") >= 2


@pytest.mark.parametrize(
    ("forecast", "ratio"),
    [
        (Forecast(peak_bytes=1 << 29), "2.00"),
        (Forecast(step_time_s=0.25), "2.04"),
        (Forecast(step_time_s=0.0), ""),
        (Forecast(because="nobody knows"), ""),
    ],
)
def test_forecast_stands_beside_what_was_measured(report, forecast, ratio):
    changed = dataclasses.replace(report, forecasts={"t01": forecast, "none": forecast})
    text = render_page(changed)
    shown = text[text.index("<h2>Forecasts</h2>") : text.index("<h2>Surroundings</h2>")]
    found = re.findall(r'<td class="number">([^<]*)</td></tr>', shown)
    assert "".join(found) == ratio
    assert len(found) == len(dataclasses.fields(forecast))
    assert forecast.because in shown


@settings(deadline=None, max_examples=40)
@given(st.text(), st.text(st.characters()), st.floats(1e-6, 1e6))
def test_page_is_well_formed_with_any_text(name, because, step_s):
    trials = (
        trial("t01", measurement=measurement()),
        trial("t02", (Choice(name, {}),), measurement=measurement(step_s)),
        trial("t03", (Choice(name, {because: name}),), code="ERROR", because=because),
    )
    report = Report(trials=trials, chosen=(), seconds=1.0, stopped=because)
    text = render_page(report)
    Page(text)
    text.encode("utf-8")
    assert len(drawings(text)) == 3


def test_clean_leaves_no_character_that_is_none():
    assert clean("\x1b[0m\x00\udc80\ttab") == "?[0m??\ttab"


@given(
    st.lists(st.floats(-1e12, 1e12), max_size=5), st.sampled_from([0.0, 0.1]), st.data()
)
def test_axis_holds_its_values_and_ends_at_ticks(values, pad, data):
    axis = Axis.over(values, 10.0, 100.0, pad=pad)
    ticks = axis.ticks()
    slack = 1e-6 * (axis.high - axis.low)
    assert 2 <= len(ticks) <= 14
    assert ticks[0] == pytest.approx(axis.low, abs=slack)
    assert ticks[-1] == pytest.approx(axis.high, abs=slack)
    for value in values:
        assert axis.low - slack <= value <= axis.high + slack
        assert 10.0 <= axis.at(value) <= 100.0


# The file


def test_html_writes_one_readable_file(report, tmp_path):
    path = report.html(str(tmp_path / "deep" / "report.html"))
    assert path.read_text(encoding="utf-8") == render_page(report)
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    assert path.stat().st_mode & 0o777 == 0o644
    report.html(path)


def test_html_that_fails_leaves_the_old_file(report, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")
    broken = dataclasses.replace(report, seconds=None)
    with pytest.raises(TypeError):
        broken.html(path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [
        ("report.html", "old")
    ]


def test_place_that_cannot_be_written_to_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        require_writable_page(tmp_path / "file" / "report.html")
    with pytest.raises(IsADirectoryError, match="it is a directory"):
        require_writable_page(tmp_path)


# The command


def test_search_command_writes_the_page(report, tmp_path, monkeypatch, capsys):
    done = SimpleNamespace(report=report, plan=report.plan)
    monkeypatch.setattr(command, "search_script", lambda *_, **__: done)
    path = tmp_path / "report.html"
    assert main(["search", "--html", str(path), "train.py"]) == 0
    assert path.read_text() == render_page(report)


def test_search_command_asks_for_the_place_before_it_begins(
    tmp_path, monkeypatch, capsys
):
    def never(*_, **__):
        pytest.fail("the search began")

    monkeypatch.setattr(command, "search_script", never)
    assert main(["search", "--html", str(tmp_path), "train.py"]) == 1
    err = capsys.readouterr().err
    assert "it is a directory" in err
    assert err.count("\n") == 1
