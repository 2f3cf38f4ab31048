// Shared by all pages: times in the reader's zone, the clock, and elements that update themselves.

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// Write the times of a document in the reader's zone. Their titles keep UTC; days alone stay those of UTC.
function localizeTimes(root) {
  for (const element of root.querySelectorAll("time")) {
    const [found, day, year] = element.textContent.match(/^(\d+ \w+( \d+)?, )?\d\d:\d\d UTC$/) ?? [];
    const at = new Date(element.dateTime);
    if (!found || !at.getTimezoneOffset()) continue;
    const date = day ? `${at.getDate()} ${MONTHS[at.getMonth()]}${year ? ` ${at.getFullYear()}` : ""}, ` : "";
    element.textContent = `${date}${at.toTimeString().slice(0, 5)}`;
  }
  return root;
}
localizeTimes(document);

// The clock has the format of the templates' times: 24 hours, UTC.
export function formatClock(date, withSeconds = false) {
  return `${date.toISOString().slice(11, withSeconds ? 19 : 16)} UTC`;
}

export function startClock() {
  const clock = document.querySelector(".clock");
  const update = () => { clock.textContent = formatClock(new Date()); };
  update();
  clock.hidden = false;
  setInterval(update, 5000);
}

// Make `current` equal to `target`, but replace no node that can stay: focus, selection, open details and running
// transitions survive. Elements with `data-keep` are not changed.
export function morph(current, target) {
  if (current.nodeType !== target.nodeType || current.nodeName !== target.nodeName) {
    current.replaceWith(target.cloneNode(true));
    return;
  }
  if (current.nodeType !== Node.ELEMENT_NODE) {
    if (current.nodeValue !== target.nodeValue) current.nodeValue = target.nodeValue;
    return;
  }
  if (current.hasAttribute("data-keep")) return;
  // A checkbox with another value belongs to another row: its state is not the visitor's choice.
  if (current.type === "checkbox" && current.value !== target.value) current.checked = target.hasAttribute("checked");
  for (const { name } of [...current.attributes]) {
    if (!target.hasAttribute(name) && name !== "open") current.removeAttribute(name);
  }
  for (const { name, value } of target.attributes) {
    if (current.getAttribute(name) === value) continue;
    current.setAttribute(name, value);
    if (name === "value" && current.type === "checkbox") current.checked = current.defaultChecked; // see above
  }
  morphChildren(current, target);
}

// Pair children by the first id in them, the others by position. Scripts hold elements by id: those must stay in the page
// when something is added before them.
function morphChildren(current, target) {
  const getKey = (node) => node.id || node.querySelector?.("[id]")?.id;
  const targets = [...target.childNodes].map((node) => ({ node, key: getKey(node) }));
  const targetKeys = new Set(targets.map(({ key }) => key).filter(Boolean));
  const keyed = new Map([...current.childNodes].map((node) => [getKey(node), node]).filter(([key]) => targetKeys.has(key)));
  const reserved = new Set(keyed.values());
  let next = current.firstChild;
  for (const { node, key } of targets) {
    let match = keyed.get(key);
    keyed.delete(key);
    if (match?.parentNode === current) while (next !== match) next = removeNode(next);
    else {
      while (node.nodeName !== "#text" && isBlankText(next)) next = removeNode(next); // a fragment lacks leading space
      match = next && !reserved.has(next) && next.nodeName === node.nodeName ? next : null;
    }
    if (match) {
      next = match.nextSibling;
      morph(match, node);
    } else current.insertBefore(node.cloneNode(true), next);
  }
  while (next) next = removeNode(next);
}

function isBlankText(node) {
  return node?.nodeName === "#text" && !node.nodeValue.trim();
}

function removeNode(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

export function parsePage(html) {
  return localizeTimes(new DOMParser().parseFromString(html, "text/html"));
}

// Replace the content of the element with this id.
export function updatePart(id, html) {
  const part = document.getElementById(id);
  if (!part) return;
  const target = part.cloneNode(false);
  target.append(...parsePage(html).body.childNodes);
  morph(part, target);
}

// Fetch the page again and update the live element. It gets the `data-revision` of the response, which may come from
// the site's cache and be older than the revision that was polled.
async function reloadElement(element) {
  const address = location.href;
  const response = await fetch(address, { cache: "no-cache" });
  if (!response.ok) throw new Error(`${response.status}`);
  const page = parsePage(await response.text());
  if (location.href !== address) return reloadElement(element);
  morph(element, page.querySelector("[data-live]") ?? page.querySelector("main"));
}

// Polling interval while the page shows an older revision than the last response. The site caches pages for 5 s.
const STALE_SECONDS = 3;

// Poll the address in `data-live` of `main`, or of an element in it, at the interval that the response names ("wait").
// Polling ends when "wait" is 0 and the page shows the latest revision. A hidden tab does not poll.
export function startPolling(onData = () => {}) {
  const element = document.querySelector("[data-live]");
  if (!element) return;
  let wait = 0, failures = 0, lastText = "", timer = 0, isStale = false;

  async function poll() {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const address = location.href;
      const response = await fetch(element.dataset.live, { cache: "no-cache", headers: { Accept: "application/json" } });
      if (!response.ok) throw new Error(`${response.status}`);
      const text = await response.text();
      if (location.href !== address) return poll(); // a search or another view changed the address meanwhile
      if (text !== lastText || isStale) {
        const data = JSON.parse(text);
        wait = data.wait;
        const hasOtherRevision = () => String(data.revision) !== element.dataset.revision;
        if (hasOtherRevision()) await reloadElement(element);
        isStale = hasOtherRevision();
        if (location.href !== address) return poll();
        for (const [id, html] of Object.entries(data.parts)) updatePart(id, html);
        onData(data);
        lastText = text;
      }
      failures = 0;
    } catch {
      failures += 1; // the site is unreachable: retry with exponential backoff
    }
    const seconds = failures ? Math.min(60, 2 ** failures) : isStale ? STALE_SECONDS : wait;
    if (seconds) timer = setTimeout(poll, seconds * 1000);
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden && (wait || isStale || !lastText)) poll(); });
  poll();
}
