// The run page: its curves can be read, zoomed and laid over others; its log can be searched and followed.

import "./copy.js";
import { Panels, choices } from "./curves.js";
import { keepCurrent, putPart, startClock } from "./live.js";

const main = document.querySelector("main");
const figure = document.getElementById("curve");
const panels = new Panels(figure, document.querySelectorAll("#panels .panel"));
const others = new Map(); // a run's number: its columns
let own = null, live = false, before = [];
startClock();
const chosen = choices(draw);

// What lies over it, in the colors that the choices name; asked for once.
async function fetched(runs) {
  const missing = runs.filter((run) => !others.has(run));
  if (!missing.length) return;
  const answer = await fetch(`/compare/curves.json?runs=${missing.join(",")}`);
  if (answer.ok) for (const [run, columns] of Object.entries((await answer.json()).curves)) others.set(run, columns);
}

async function draw(view = chosen()) {
  if (!own) return;
  try { await fetched(view.over); } catch { /* the site is away for a moment: what is here is drawn */ }
  const lines = view.over.filter((run) => others.has(run)).map((run) => {
    const { label, color } = document.querySelector(`#choices [name=over][value="${run}"]`).dataset;
    return { label, color, columns: others.get(run) };
  });
  if (own.train.step.length) figure.dataset.points = own.train.step.at(-1);
  panels.show([...lines, ...before, { label: "this run", color: "ink", columns: own, alone: true, live }], view); // on top
}

// The runs before it, where it comes from others' weights: they do not change, so they are asked for once.
if (figure.dataset.lineage) {
  fetch(figure.dataset.lineage).then(async (answer) => {
    if (answer.ok) before = (await answer.json()).branches;
    draw();
  }).catch(() => {}); // away for a moment: its own curve is drawn
}

// --- the log: at its last line, unless the reader has scrolled up ---

const log = document.getElementById("log");
const follow = document.getElementById("follow");
const find = document.getElementById("find");
const [liveAddress] = main.dataset.live.split("?");
const box = () => log.querySelector(".log");
const toEnd = () => { if (follow.checked && box()) box().scrollTop = box().scrollHeight; };
log.addEventListener("scroll", ({ target }) => { follow.checked = target.scrollTop + target.clientHeight > target.scrollHeight - 24; }, true);
follow.addEventListener("change", toEnd);

let typed = 0;
async function search() {
  const words = find.elements.find.value.trim();
  main.dataset.live = words ? `${liveAddress}?find=${encodeURIComponent(words)}` : liveAddress;
  const address = new URLSearchParams(location.search);
  if (words) address.set("find", words);
  else address.delete("find");
  history.replaceState(null, "", `?${address}`);
  const answer = await fetch(main.dataset.live, { headers: { Accept: "application/json" } });
  if (answer.ok && words === find.elements.find.value.trim()) putPart("log", (await answer.json()).parts.log);
  toEnd();
}
const searched = () => search().catch(() => {}); // away for a moment: the next letter asks again
find.addEventListener("submit", (event) => { event.preventDefault(); searched(); });
find.addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(searched, 300); });
toEnd();

keepCurrent(({ curve, wait }) => {
  [own, live] = [curve, wait > 0];
  draw();
  toEnd();
});
