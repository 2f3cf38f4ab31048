// The run page: a chart that can be read, zoomed and overlaid with other runs, and a log that can be searched and
// followed.

import "./copy.js";
import { CurvePanels, connectViewForm } from "./curves.js";
import { startClock, startPolling, updatePart } from "./live.js";

const main = document.querySelector("main");
const figure = document.getElementById("curve");
const panels = new CurvePanels(figure);
const overlays = new Map(); // run id (a string) to columns
let columns = null, isLive = false, lineage = [];
startClock();
const readView = connectViewForm(drawCurves);

// Fetch the curves of overlaid runs, each once: they are not updated afterwards.
async function loadOverlays(runs) {
  const missing = runs.filter((run) => !overlays.has(run));
  if (!missing.length) return;
  const response = await fetch(`/compare/curves.json?runs=${missing.join(",")}`);
  if (!response.ok) return;
  for (const [run, loaded] of Object.entries((await response.json()).curves)) overlays.set(run, loaded);
}

async function drawCurves() {
  if (!columns) return;
  try { await loadOverlays(readView().over); } catch { /* the site is unreachable: draw without them */ }
  const view = readView(); // again: the visitor may have changed it during the request
  const lines = view.over.filter((run) => overlays.has(run)).map((run) => {
    const { label, color } = document.querySelector(`#choices [name=over][value="${run}"]`).dataset;
    return { label, color, columns: overlays.get(run) };
  });
  if (columns.train.step.length) figure.dataset.points = columns.train.step.at(-1);
  // The last line is drawn on top.
  panels.show([...lines, ...lineage, { label: "this run", color: "ink", columns, isOwn: true, isLive }], view);
}

// The curves of earlier runs that this one continues. They do not change, so one request is enough.
if (figure.dataset.lineage) {
  fetch(figure.dataset.lineage).then(async (response) => {
    if (response.ok) lineage = (await response.json()).branches;
    drawCurves();
  }).catch(() => {}); // the site is unreachable: the chart has this run only
}

// --- log: follows its last line until the reader scrolls up ---

const log = document.getElementById("log");
const follow = document.getElementById("follow");
const searchForm = document.getElementById("find");
const [liveAddress] = main.dataset.live.split("?");
const readQuery = () => searchForm.elements.find.value.trim();

function scrollToEnd() {
  const box = log.querySelector(".log");
  if (follow.checked && box) box.scrollTop = box.scrollHeight;
}

log.addEventListener("scroll", ({ target }) => {
  follow.checked = target.scrollTop + target.clientHeight > target.scrollHeight - 24;
}, true);
follow.addEventListener("change", scrollToEnd);

async function searchLog() {
  const query = readQuery();
  main.dataset.live = query ? `${liveAddress}?find=${encodeURIComponent(query)}` : liveAddress;
  const address = new URLSearchParams(location.search);
  if (query) address.set("find", query);
  else address.delete("find");
  history.replaceState(null, "", `?${address}`);
  try {
    const response = await fetch(main.dataset.live, { headers: { Accept: "application/json" } });
    if (response.ok && query === readQuery()) updatePart("log", (await response.json()).parts.log);
  } catch { /* the site is unreachable: the next key searches again */ }
  scrollToEnd();
}

let searchTimer = 0;
searchForm.addEventListener("submit", (event) => { event.preventDefault(); searchLog(); });
searchForm.addEventListener("input", () => { clearTimeout(searchTimer); searchTimer = setTimeout(searchLog, 300); });
scrollToEnd();

startPolling(({ curve, wait }) => {
  [columns, isLive] = [curve, wait > 0];
  drawCurves();
  scrollToEnd();
});
