// The board without reloads: the form and the heads ask for the same addresses as without script, and keys lead
// through the rows. The chosen columns are stored in the browser.

import { morph } from "./live.js";

const SETTLE = 200; // milliseconds after the last key of a search
const REMEMBERED = "board-columns";
const results = document.getElementById("results");
const form = () => results.querySelector(".board-form");
let asked = 0;
let shown = location.search;

document.documentElement.classList.add("is-instant");

async function show(address, keep) {
  const number = ++asked;
  const answer = await fetch(address, { headers: { Accept: "text/html" } }).catch(() => null);
  if (number !== asked) return; // a later question has overtaken it
  if (!answer?.ok) {
    if (!keep) location.assign(address); // the page itself says what is wrong
    return;
  }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (number !== asked) return;
  const picked = new Set([...results.querySelectorAll(".pick:checked")].map((box) => box.value));
  morph(results, page.getElementById("results"));
  for (const box of results.querySelectorAll(".pick")) box.checked = picked.has(box.value); // it is the run's, not the row's
  for (const box of results.querySelectorAll(".menu input")) box.checked = box.hasAttribute("checked");
  for (const option of results.querySelectorAll("option")) option.selected = option.hasAttribute("selected");
  if (keep) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  shown = location.search;
}

function addressOf(fields) {
  const usual = results.querySelector(".board").dataset.usual;
  const query = new URLSearchParams();
  for (const name of new Set(fields.keys())) {
    const value = fields.getAll(name).join(",");
    const plain = { sort: "rank", columns: usual }[name] ?? "";
    if (value && value !== plain) query.set(name, value);
  }
  return `${location.pathname}?${query}`.replaceAll("%2C", ",").replace(/\?$/, "");
}

let settling = 0;
results.addEventListener("input", (event) => {
  if (!event.target.closest(".board-form")) return;
  if (event.target.name === "columns") {
    const chosen = new FormData(form()).getAll("columns").join(",");
    localStorage.setItem(REMEMBERED, chosen);
  }
  clearTimeout(settling);
  settling = setTimeout(() => show(addressOf(new FormData(form())), true), event.target.type === "search" ? SETTLE : 0);
});
results.addEventListener("submit", (event) => {
  if (event.target !== form()) return; // runs chosen for a comparison
  event.preventDefault();
  show(addressOf(new FormData(form())), false);
});
results.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-table]");
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  if (!new URL(link.href).searchParams.has("q")) form().elements.q.value = "";
  show(link.href.split("#")[0], false);
});
document.addEventListener("click", (event) => {
  for (const menu of results.querySelectorAll(".menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
addEventListener("popstate", () => { if (location.search !== shown) location.reload(); }); // not for a link within the page

// Columns remembered from another visit, where the address names none.
const remembered = localStorage.getItem(REMEMBERED);
if (remembered && form() && !new URLSearchParams(location.search).has("columns")) {
  const fields = new FormData(form());
  fields.delete("columns");
  remembered.split(",").forEach((name) => fields.append("columns", name));
  const address = addressOf(fields);
  if (address !== location.pathname + location.search) show(address, true);
}

const links = () => [...results.querySelectorAll("tbody .entry > a")];

function step(by) {
  const all = links();
  const at = all.indexOf(document.activeElement);
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1)];
  next?.focus();
  next?.closest("tr").scrollIntoView({ block: "nearest" });
}

const keys = {
  j: () => step(1),
  k: () => step(-1),
  "/": () => form()?.elements.q.focus(),
  "?": () => document.getElementById("keys").showModal(),
};

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea, dialog");
  if (event.key === "Escape" && event.target.name === "q") event.target.blur();
  if (typing || event.metaKey || event.ctrlKey || event.altKey || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
