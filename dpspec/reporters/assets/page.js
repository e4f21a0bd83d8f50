"use strict";
(() => {
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
    opened = [...document.querySelectorAll("details:not([open])")].filter((part) => !part.closest("figure"));
    opened.forEach((part) => { part.open = true; });
  });
  window.addEventListener("afterprint", () => opened.forEach((part) => { part.open = false; }));
})();
