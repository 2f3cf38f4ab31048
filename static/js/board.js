// The board without page loads. The form and the column heads request the same addresses as without script. Keyboard
// shortcuts move through the rows. The chosen columns are stored in the browser.

import { morph, parsePage } from "./live.js";

const SEARCH_DELAY_MS = 200; // after the last key
const COLUMNS_KEY = "board-columns"; // in localStorage
const results = document.getElementById("results");
const getForm = () => results.querySelector(".board-form");
let lastRequest = 0;
let currentSearch = location.search;

document.documentElement.classList.add("is-instant");

async function loadResults(address, { replace }) {
  const request = ++lastRequest;
  const response = await fetch(address, { headers: { Accept: "text/html" } }).catch(() => null);
  if (request !== lastRequest) return; // a later request was sent meanwhile
  if (!response?.ok) {
    if (!replace) location.assign(address); // let the page show the error
    return;
  }
  const page = parsePage(await response.text());
  if (request !== lastRequest) return;
  const picked = new Set([...results.querySelectorAll(".pick:checked")].map((box) => box.value));
  morph(results, page.getElementById("results"));
  for (const box of results.querySelectorAll(".pick")) box.checked = picked.has(box.value); // a row may have another run now
  tickColumns();
  for (const option of results.querySelectorAll("option")) option.selected = option.hasAttribute("selected");
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  currentSearch = location.search;
}

// A narrow window hides some of the usual columns: tick the visible ones.
function tickColumns() {
  const hasCells = results.querySelector(".board tbody td") !== null;
  for (const box of results.querySelectorAll(".menu input")) {
    const cell = results.querySelector(`.board tbody .col-${box.value}`);
    box.checked = box.hasAttribute("checked") && (!hasCells || cell?.checkVisibility() !== false);
  }
  const board = results.querySelector(".board");
  if (board && !board.matches(".is-chosen")) {
    board.dataset.usual = new FormData(getForm()).getAll("columns").join(",");
  }
}

// Return the address for the form's fields, without those that have their default.
function buildAddress(fields) {
  const defaults = { sort: "rank", columns: results.querySelector(".board").dataset.usual };
  const query = new URLSearchParams();
  for (const name of new Set(fields.keys())) {
    const value = fields.getAll(name).join(",");
    if (value && value !== (defaults[name] ?? "")) query.set(name, value);
  }
  return `${location.pathname}?${query}`.replaceAll("%2C", ",").replace(/\?$/, "");
}

let searchTimer = 0;
results.addEventListener("input", (event) => {
  if (!event.target.closest(".board-form")) return;
  if (event.target.name === "columns") {
    localStorage.setItem(COLUMNS_KEY, new FormData(getForm()).getAll("columns").join(","));
  }
  const delay = event.target.type === "search" ? SEARCH_DELAY_MS : 0;
  clearTimeout(searchTimer);
  searchTimer = setTimeout(() => loadResults(buildAddress(new FormData(getForm())), { replace: true }), delay);
});
results.addEventListener("submit", (event) => {
  if (event.target !== getForm()) return; // the form that compares the picked runs
  event.preventDefault();
  loadResults(buildAddress(new FormData(getForm())), { replace: false });
});
results.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-table]");
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  if (!new URL(link.href).searchParams.has("q")) getForm().elements.q.value = "";
  loadResults(link.href.split("#")[0], { replace: false });
});
document.addEventListener("click", (event) => {
  for (const menu of results.querySelectorAll(".menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
// Links within the page fire popstate too: they leave the query string as it is.
addEventListener("popstate", () => { if (location.search !== currentSearch) location.reload(); });

tickColumns();
addEventListener("resize", tickColumns);

// Apply the columns of an earlier visit, unless the address names some.
const savedColumns = localStorage.getItem(COLUMNS_KEY);
if (savedColumns && getForm() && !new URLSearchParams(location.search).has("columns")) {
  const fields = new FormData(getForm());
  fields.delete("columns");
  savedColumns.split(",").forEach((name) => fields.append("columns", name));
  const address = buildAddress(fields);
  if (address !== location.pathname + location.search) loadResults(address, { replace: true });
}

// Focus the link of the next row (offset 1) or the previous one (-1); without focus, of the first or the last row.
function moveFocus(offset) {
  const links = [...results.querySelectorAll("tbody .entry > a")];
  const index = links.indexOf(document.activeElement);
  const edge = offset > 0 ? 0 : links.length - 1;
  const link = links[index < 0 ? edge : Math.min(Math.max(index + offset, 0), links.length - 1)];
  link?.focus();
  link?.closest("tr").scrollIntoView({ block: "nearest" });
}

const shortcuts = {
  j: () => moveFocus(1),
  k: () => moveFocus(-1),
  "/": () => getForm()?.elements.q.focus(),
  "?": () => document.getElementById("keys").showModal(),
};

addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, select, textarea, dialog");
  if (event.key === "Escape" && event.target.name === "q") event.target.blur();
  if (isTyping || event.metaKey || event.ctrlKey || event.altKey || !shortcuts[event.key]) return;
  event.preventDefault();
  shortcuts[event.key]();
});
