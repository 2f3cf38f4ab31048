// A node's page: lines to copy, and what changes while its owner looks on.

import { keepCurrent, startClock } from "./live.js";

function ready() {
  for (const button of document.querySelectorAll("button[data-copy][hidden]")) button.hidden = false;
}

async function copy(button) {
  const line = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(line.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  } catch { // not allowed here, or not over HTTPS: mark it, and the keyboard does the rest
    getSelection().selectAllChildren(line);
    button.textContent = "Ctrl+C";
  }
}

document.addEventListener("click", ({ target }) => {
  const button = target.closest("button[data-copy]");
  if (button) copy(button);
});
startClock();
ready();
keepCurrent(ready);
