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
