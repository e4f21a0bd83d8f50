"use strict";
(() => {
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const first = target.tagName === "ARTICLE" ? target.querySelector("details.cell") : target;
    for (let part = first; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", reveal);
  reveal();
  const number = (text) => {
    const found = text.match(/-?\d+(\.\d+)?(e-?\d+)?/);
    return found ? Number(found[0]) : NaN;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0], rows = [...body.rows];
    const filter = document.createElement("input");
    filter.type = "search";
    filter.placeholder = "Filter rows, such as: refuted";
    filter.setAttribute("aria-label", "Filter rows");
    filter.addEventListener("input", () => {
      const parts = filter.value.toLowerCase().split(/\s+/);
      for (const row of rows) row.hidden = !parts.every((part) => row.textContent.toLowerCase().includes(part));
    });
    table.parentElement.before(filter);
    [...table.tHead.rows[0].cells].slice(0, -1).forEach((head, column) => {
      const button = document.createElement("button");
      button.textContent = head.textContent;
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down === 1 ? "ascending" : "descending");
        const of = (row) => row.cells[column].textContent;
        const order = (a, b) => number(of(a)) - number(of(b)) || of(a).localeCompare(of(b));
        body.append(...rows.sort((a, b) => down * order(a, b)));
      });
      head.replaceChildren(button);
    });
  }
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")].filter((part) => !part.closest("figure"));
    opened.forEach((part) => { part.open = true; });
  });
  window.addEventListener("afterprint", () => opened.forEach((part) => { part.open = false; }));
})();
