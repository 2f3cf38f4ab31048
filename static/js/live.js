// What every page has: a clock, and parts that keep themselves current.

// The one format of times, as templates write them: 24 hours, UTC.
export function formatClock(at, seconds = false) {
  return `${at.toISOString().slice(11, seconds ? 19 : 16)} UTC`;
}

export function startClock() {
  const place = document.querySelector(".clock");
  const show = () => { place.textContent = formatClock(new Date()); };
  show();
  place.hidden = false;
  setInterval(show, 5000);
}

// Make `old` look like `fresh` and change nothing else: focus, selection, open details and transitions live on.
export function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh.cloneNode(true));
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if (old.hasAttribute("data-keep")) return;
  if (old.type === "checkbox" && old.value !== fresh.value) old.checked = fresh.hasAttribute("checked"); // another's box
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) === value) continue;
    old.setAttribute(name, value);
    if (name === "value" && old.type === "checkbox") old.checked = old.defaultChecked; // it stands for another now
  }
  const [now, next] = [[...old.childNodes], [...fresh.childNodes]];
  next.forEach((child, i) => (i < now.length ? morph(now[i], child) : old.append(child.cloneNode(true))));
  now.slice(next.length).forEach((child) => child.remove());
}

function parsed(html) {
  const page = new DOMParser().parseFromString(html, "text/html");
  return page;
}

export function putPart(id, html) {
  const part = document.getElementById(id);
  if (!part) return;
  const fresh = part.cloneNode(false);
  fresh.append(...parsed(html).body.childNodes);
  morph(part, fresh);
}

async function renew(main) {
  const address = location.href;
  const answer = await fetch(address, { cache: "no-cache" });
  if (!answer.ok) throw new Error(`${answer.status}`);
  const page = parsed(await answer.text());
  if (location.href !== address) return renew(main);
  morph(main, page.querySelector("[data-live]") ?? page.querySelector("main")); // with its own revision: it may have been kept for a moment
}

const BEHIND_SECONDS = 3; // when a page asks again that knows of something newer than what it shows: the site keeps pages for 5 s

// Ask the address of `[data-live]`, which is `main` or a part of it, for what has changed, at the pace it sets; "wait": 0 ends it, once the page shows what there is.
// Nothing is asked by a hidden tab.
export function keepCurrent(onData = () => {}) {
  const main = document.querySelector("[data-live]");
  if (!main) return;
  let wait = 0, failures = 0, last = "", timer = 0, behind = false;

  async function ask() {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const address = location.href;
      const answer = await fetch(main.dataset.live, { cache: "no-cache", headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(`${answer.status}`);
      const text = await answer.text();
      if (location.href !== address) return ask(); // a search or a choice has changed it meanwhile
      if (text !== last || behind) {
        const data = JSON.parse(text);
        wait = data.wait;
        const isBehind = () => String(data.revision) !== main.dataset.revision;
        if (isBehind()) await renew(main);
        behind = isBehind();
        if (location.href !== address) return ask();
        for (const [id, html] of Object.entries(data.parts)) putPart(id, html);
        onData(data);
        last = text;
      }
      failures = 0;
    } catch {
      failures += 1; // the site is away for a moment: ask again, less and less often
    }
    const pause = failures ? Math.min(60, 2 ** failures) : behind ? BEHIND_SECONDS : wait;
    if (pause) timer = setTimeout(ask, pause * 1000);
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden && (wait || behind || !last)) ask(); });
  ask();
}
