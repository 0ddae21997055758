"""What the page of a report looks like, and the little script that sorts its tables."""

from __future__ import annotations

STYLE = """
:root {
  --back: #ffffff; --card: #f6f7f9; --ink: #1b2026; --soft: #5a6572; --rule: #dfe3e8;
  --plain: #4a7fb5; --chosen: #1f8a4c; --wrong: #c0392b; --best: #d08700;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #14171b; --card: #1c2127; --ink: #e8ebee; --soft: #9aa5b1; --rule: #333b44;
    --plain: #6ba3d8; --chosen: #4cc27d; --wrong: #f07464; --best: #f0b94a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
main { max-width: 960px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 24px; line-height: 1.3; margin: 0 0 8px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 8px; }
.lead { color: var(--soft); margin: 0 0 24px; overflow-wrap: anywhere; }
.note, .nothing { color: var(--soft); font-size: 13px; margin: 0 0 12px; }
section {
  background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: 20px 24px; margin: 0 0 20px;
}
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 12.5px; white-space: pre; }
svg .tick, svg .axis { fill: var(--soft); font-size: 12px; }
svg .strong { font-weight: 600; }
svg .bad { fill: var(--wrong); font-weight: 600; }
svg .label { paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .floor { stroke: var(--soft); stroke-width: 1; }
svg .base { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 5 4; }
svg .span { stroke: var(--ink); stroke-width: 1.4; opacity: 0.75; }
svg .median { stroke: var(--ink); stroke-width: 1.6; }
svg .cross { stroke: var(--wrong); stroke-width: 2.4; stroke-linecap: round; }
svg .best { fill: none; stroke: var(--best); stroke-width: 2; }
svg .plain { fill: var(--plain); }
svg .chosen { fill: var(--chosen); }
svg .wrong { fill: var(--wrong); }
svg .interval { fill: var(--chosen); opacity: 0.35; }
svg .hollow { fill: var(--card); stroke: var(--plain); stroke-width: 2; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td {
  text-align: left; vertical-align: top; padding: 6px 14px 6px 0;
  border-bottom: 1px solid var(--rule);
}
td { overflow-wrap: break-word; unicode-bidi: isolate; }
td:last-child:not(.number) { min-width: 200px; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
th button {
  all: unset; cursor: pointer; color: inherit; font: inherit;
}
th button:focus-visible { outline: 2px solid var(--plain); outline-offset: 2px; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
details { margin: 0 0 8px; }
summary { cursor: pointer; overflow-wrap: anywhere; }
pre {
  overflow-x: auto; background: var(--back); border: 1px solid var(--rule);
  border-radius: 6px; padding: 12px; font-size: 12px; line-height: 1.4;
}
@media print { section { break-inside: avoid; } }
"""
"""The style sheet."""

SCRIPT = """
for (const head of document.querySelectorAll("th")) {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  button.title = "sort";
  head.append(button);
  button.addEventListener("click", () => {
    const rows = [...head.closest("table").tBodies[0].rows];
    const column = head.cellIndex;
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const text = row => row.cells[column].textContent;
    const number = row => parseFloat(text(row).replace(/,/g, ""));
    rows.sort((a, b) => {
      const gap = number(a) - number(b);
      return Number.isNaN(gap) ? text(a).localeCompare(text(b)) : gap;
    });
    head.closest("table").tBodies[0].append(...(up ? rows : rows.reverse()));
  });
}
"""
"""Sorts a table by the column that is clicked; the page is whole without it."""
