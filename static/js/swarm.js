// The page of a swarm run: the machines of each stage, live and in a replay of the recorded events.

import { formatClock, startClock, startPolling } from "./live.js";

const GONE_SECONDS = 8; // how long a machine that left is shown
const BAN_SECONDS = 30;
const REPLAY_SECONDS = 30; // duration of a whole replay
const FRAME_MS = 200;
const SLIDER_END = 1000;

const container = document.getElementById("stages");
const [slider, clock, playButton] = ["moment", "clock", "play"].map((id) => document.getElementById(id));
let events = [], stageCount = 0, isFollowing = true, replayTimer = 0, pendingLoad = null;
startClock();

// Fetch the events after the last one in `events`.
async function loadEvents() {
  for (let hasMore = true; hasMore;) {
    const since = events.length ? events.at(-1).id : 0;
    const response = await fetch(`${container.dataset.record}?since=${since}`, { cache: "no-cache" });
    if (!response.ok) return;
    const page = await response.json();
    stageCount = page.stages;
    events.push(...page.events);
    hasMore = page.next !== null;
  }
  if (events.length) document.getElementById("replay").hidden = false;
  drawSwarm();
}

// Two requests at a time would add the same events twice.
function updateEvents() {
  pendingLoad ??= loadEvents().catch(() => {}).finally(() => { pendingLoad = null; });
}

// Return the machines at a time, the last step with its metrics, and the number of the last step.
function computeState(time) {
  const machines = new Map();
  let step = null, stepNumber = 0;
  for (const event of events) {
    if (event.at > time) break;
    stepNumber = event.step;
    const machine = machines.get(event.peer);
    if (event.what === "join") machines.set(event.peer, { ...event, rows: 0, leftAt: null, bannedAt: null });
    else if (event.what === "leave" && machine) machine.leftAt = event.at;
    else if (event.what === "ban" && machine) machine.bannedAt = event.at;
    else if (event.what === "start" || event.what === "end") {
      for (const each of machines.values()) each.leftAt ??= event.at;
    } else if (event.what === "step") {
      step = event;
      for (const [peer, each] of machines) each.rows = event.held?.[each.stage]?.[peer] ?? 0;
    }
  }
  const visible = [...machines.values()].filter(({ leftAt }) => leftAt === null || time - leftAt < GONE_SECONDS);
  return { machines: visible, step, stepNumber };
}

function createElement(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text; // never HTML: names come from strangers
  return element;
}

function createMachine(machine, time) {
  const isGone = machine.leftAt !== null;
  const isBanned = !isGone && machine.bannedAt !== null && time - machine.bannedAt < BAN_SECONDS;
  const element = createElement("li", `swarm-machine${isGone ? " is-gone" : isBanned ? " is-banned" : ""}`);
  element.dataset.peer = machine.peer;
  const state = isGone ? "left" : isBanned ? "banned for half a minute" : `${machine.rows} rows`;
  element.append(createElement("b", "", machine.name || machine.peer), " ", createElement("span", "", state));
  return element;
}

function drawStage(number, machines, time) {
  let stage = container.children[number];
  if (!stage?.dataset.drawn) {
    stage?.remove();
    stage = createElement("section", "swarm-stage");
    stage.dataset.drawn = "yes";
    stage.append(createElement("h3", "", `Stage ${number + 1}`), createElement("ul"));
    container.insertBefore(stage, container.children[number] ?? null);
  }
  const list = stage.lastElementChild;
  const elements = new Map([...list.children].map((child) => [child.dataset.peer, child]));
  const items = machines.map((machine) => {
    const item = createMachine(machine, time), current = elements.get(machine.peer);
    if (!current) return item;
    current.className = item.className;
    current.replaceChildren(...item.childNodes);
    return current; // a new element would repeat the animation of a machine that joins
  });
  if (!items.length) items.push(createElement("li", "empty", "No machines."));
  list.replaceChildren(...items);
}

function drawSwarm() {
  if (!events.length) return;
  const [first, last] = [events[0].at, events.at(-1).at];
  const time = isFollowing ? last : first + (last - first) * slider.value / SLIDER_END;
  if (isFollowing) slider.value = SLIDER_END;
  const { machines, step, stepNumber } = computeState(time);
  for (let number = 0; number < stageCount; number += 1) {
    const members = machines.filter(({ stage }) => stage === number).sort((a, b) => a.peer.localeCompare(b.peer));
    drawStage(number, members, time);
  }
  const loss = step ? `, loss ${step.loss.toFixed(3)}` : "";
  clock.textContent = `${formatClock(new Date(time * 1000), true)}, step ${step?.step ?? stepNumber}${loss}`;
  for (const svg of document.querySelectorAll("#lines svg")) {
    const { first: begin, last: end } = svg.dataset, width = svg.viewBox.baseVal.width;
    const share = Math.min(1, Math.max(0, ((step?.step ?? 0) - begin) / Math.max(end - begin, 1)));
    const cursor = svg.querySelector(".cursor");
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, share * width);
  }
}

function stopReplay() {
  clearInterval(replayTimer);
  replayTimer = 0;
  playButton.textContent = "Play";
  playButton.setAttribute("aria-pressed", "false");
}

function startReplay() {
  isFollowing = false;
  if (Number(slider.value) === SLIDER_END) slider.value = 0;
  playButton.textContent = "Pause";
  playButton.setAttribute("aria-pressed", "true");
  replayTimer = setInterval(() => {
    slider.value = Number(slider.value) + SLIDER_END * FRAME_MS / 1000 / REPLAY_SECONDS;
    drawSwarm();
    if (Number(slider.value) >= SLIDER_END) { stopReplay(); isFollowing = true; }
  }, FRAME_MS);
}

slider.addEventListener("input", () => { stopReplay(); isFollowing = Number(slider.value) === SLIDER_END; drawSwarm(); });
document.getElementById("now").addEventListener("click", () => { stopReplay(); isFollowing = true; drawSwarm(); });
document.getElementById("replay").addEventListener("submit", (event) => event.preventDefault());
playButton.addEventListener("click", () => { if (replayTimer) stopReplay(); else startReplay(); });

updateEvents();
startPolling((data) => { if (data.last !== events.at(-1)?.id) updateEvents(); else drawSwarm(); });
