// A swarm's page: machines as dots in their stages, live, and played again from the record.

import { formatClock, keepCurrent, startClock } from "./live.js";

const place = document.getElementById("stages");
const [slider, clock, play] = ["moment", "clock", "play"].map((id) => document.getElementById(id));
const GONE = 8, BANNED = 30, LENGTH = 30; // seconds: a dot that left stays, a ban lasts, the whole record plays
let events = [], stages = 0, following = true, playing = 0, reading = null;
startClock();

// What has come since the last event that is here.
async function read() {
  for (let more = true; more;) {
    const since = events.length ? events.at(-1).id : 0;
    const answer = await fetch(`${place.dataset.record}?since=${since}`, { cache: "no-cache" });
    if (!answer.ok) return;
    const found = await answer.json();
    stages = found.stages;
    events.push(...found.events);
    more = found.next !== null;
  }
  if (events.length) document.getElementById("replay").hidden = false;
  show();
}

// Only one reads at a time: an event comes in once.
function renew() { reading ??= read().catch(() => {}).finally(() => { reading = null; }); }

// The swarm as it was at a time: who was where, and the last step.
function at(time) {
  const machines = new Map();
  let step = null, seen = 0;
  for (const event of events) {
    if (event.at > time) break;
    seen = event.step;
    const known = machines.get(event.peer);
    if (event.what === "join") machines.set(event.peer, { ...event, rows: 0, gone: null, banned: null });
    else if (event.what === "leave" && known) known.gone = event.at;
    else if (event.what === "ban" && known) known.banned = event.at;
    else if (event.what === "start") for (const one of machines.values()) one.gone ??= event.at;
    else if (event.what === "end") for (const one of machines.values()) one.gone ??= event.at;
    else if (event.what === "step") {
      step = event;
      for (const [peer, one] of machines) one.rows = event.held?.[one.stage]?.[peer] ?? 0;
    }
  }
  const there = [...machines.values()].filter((one) => one.gone === null || time - one.gone < GONE);
  return { there, step, seen };
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text; // names are strangers' words
  return made;
}

function dot(machine, time) {
  const gone = machine.gone !== null, banned = machine.banned !== null && time - machine.banned < BANNED;
  const made = element("li", `swarm-machine${gone ? " is-gone" : banned ? " is-banned" : ""}`);
  made.dataset.peer = machine.peer;
  const word = gone ? "left" : banned ? "banned for half a minute" : `${machine.rows} rows`;
  made.append(element("b", "", machine.name || machine.peer), " ", element("span", "", word));
  return made;
}

function column(number, machines, time) {
  let made = place.children[number];
  if (!made?.dataset.drawn) {
    made?.remove();
    made = element("section", "swarm-stage");
    made.dataset.drawn = "yes";
    made.append(element("h3", "", `Stage ${number + 1}`), element("ul"));
    place.insertBefore(made, place.children[number] ?? null);
  }
  const list = made.lastElementChild;
  const old = new Map([...list.children].map((child) => [child.dataset.peer, child]));
  const fresh = machines.map((machine) => {
    const next = dot(machine, time), before = old.get(machine.peer);
    if (!before) return next;
    before.className = next.className;
    before.replaceChildren(...next.childNodes);
    return before; // the same dot: it does not arrive again
  });
  if (!fresh.length) fresh.push(element("li", "empty", "No machines."));
  list.replaceChildren(...fresh);
}

function show() {
  if (!events.length) return;
  const [first, last] = [events[0].at, events.at(-1).at];
  const time = following ? last : first + (last - first) * slider.value / 1000;
  if (following) slider.value = 1000;
  const { there, step, seen } = at(time);
  for (let number = 0; number < stages; number += 1) {
    column(number, there.filter((one) => one.stage === number).sort((a, b) => a.peer.localeCompare(b.peer)), time);
  }
  const pace = step ? `, loss ${step.loss.toFixed(3)}` : "";
  clock.textContent = `${formatClock(new Date(time * 1000), true)}, step ${step?.step ?? seen}${pace}`;
  for (const svg of document.querySelectorAll("#lines svg")) {
    const { first: from, last: to } = svg.dataset, width = svg.viewBox.baseVal.width;
    const part = Math.min(1, Math.max(0, ((step?.step ?? 0) - from) / Math.max(to - from, 1)));
    const cursor = svg.querySelector(".cursor");
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, part * width);
  }
}

function stop() {
  clearInterval(playing);
  playing = 0;
  play.textContent = "Play";
  play.setAttribute("aria-pressed", "false");
}

slider.addEventListener("input", () => { stop(); following = Number(slider.value) === 1000; show(); });
document.getElementById("now").addEventListener("click", () => { stop(); following = true; show(); });
document.getElementById("replay").addEventListener("submit", (event) => event.preventDefault());
play.addEventListener("click", () => {
  if (playing) return stop();
  following = false;
  if (Number(slider.value) === 1000) slider.value = 0;
  play.textContent = "Pause";
  play.setAttribute("aria-pressed", "true");
  playing = setInterval(() => {
    slider.value = Number(slider.value) + 1000 / LENGTH / 5;
    show();
    if (Number(slider.value) >= 1000) { stop(); following = true; }
  }, 200);
});

renew();
keepCurrent((data) => { if (data.last !== events.at(-1)?.id) renew(); else show(); });
