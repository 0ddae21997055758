"""A report as tables, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_fabric.adviser._advice import Advice
    from drivetrain_fabric.adviser._advise import Report


def report_tables(report: Report) -> list[Table]:
    """Returns what to set, what is set wrongly, and what is not known, if anything.

    Args:
        report: What an adviser has to say.

    Example:
        >>> from drivetrain_fabric.adviser import Facts, advise
        >>> [table.title for table in report_tables(advise(Facts(ranks=8)))]
        ['nothing is said on']
    """
    advice = [(one.level, _set(one), _because(one)) for one in report.advice]
    problems = [(one.name, one.where, one.because, one.fix) for one in report.problems]
    gaps = [(one.subject, one.lacks, one.give) for one in report.gaps]
    title = f"for {report.nccl}, {report.transport}"
    drawn = (
        _table(title, ("level", "setting", "because"), advice),
        _table(
            "set, but not as it seems",
            ("what is set", "where", "because", "what helps"),
            problems,
        ),
        _table("nothing is said on", ("subject", "not known", "give it with"), gaps),
    )
    return [table for table in drawn if table.row_count]


def _set(one: Advice) -> str:
    """Returns a setting with its value below; what is to be done is a text of its own."""
    if one.scope == "host":
        return one.setting
    return f"{one.setting}\n{'unset' if one.value is None else f'= {one.value}'}"


def _because(one: Advice) -> str:
    do = f"\nDo: {one.value}" if one.scope == "host" else ""
    return f"{one.because}.{do}\nFrom: {one.source}"


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=escape(title), title_justify="left", show_lines=True)
    for column in columns:
        # A name or a path that is cut or broken cannot be copied.
        table.add_column(column, overflow="fold", no_wrap=column == "setting")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table
