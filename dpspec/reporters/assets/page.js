"use strict";
(() => {
  const value = (cell) => {
    const text = (cell.dataset.sort ?? cell.textContent).trim();
    const number = Number(text);
    return text !== "" && !Number.isNaN(number) ? number : text.toLowerCase();
  };
  const compare = (a, b) => {
    if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b);
    return typeof a === "number" ? -1 : 1;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const rising = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", rising ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => (rising ? 1 : -1) * compare(value(a.cells[column]), value(b.cells[column])));
        table.tBodies[0].append(...rows);
      });
    });
  }
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const folded = target.tagName === "ARTICLE" ? target.querySelector("details.cell") : target.closest("details");
    if (folded) folded.open = true;
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", reveal);
  reveal();
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.print:not([open])")];
    opened.forEach((part) => { part.open = true; });
  });
  window.addEventListener("afterprint", () => opened.forEach((part) => { part.open = false; }));
  const filter = document.querySelector(".filter");
  const rows = [...document.querySelectorAll("#overview tbody tr")];
  if (rows.length < 2) return;
  filter.hidden = false;
  const find = document.getElementById("find");
  const only = document.getElementById("only");
  const unexpected = document.getElementById("unexpected");
  const show = () => {
    const words = find.value.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const fits = row.textContent.toLowerCase().includes(words)
        && (!only.value || row.dataset.verdict === only.value)
        && (!unexpected.checked || row.dataset.expected === "no");
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    document.getElementById("shown").textContent = `${shown} of ${rows.length}`;
  };
  filter.addEventListener("input", show);
  filter.addEventListener("submit", (event) => event.preventDefault());
  show();
})();
