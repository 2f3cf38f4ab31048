// The comparison: curves of all runs in their own colours, and what goes into a pull request.

import { Panels, choices } from "./curves.js";
import { keepCurrent, startClock } from "./live.js";
startClock();

const figure = document.getElementById("curve");
if (document.getElementById("choices")) {
  const panels = new Panels(figure, document.querySelectorAll("#panels .panel"));
  const keys = [...figure.querySelectorAll("[data-run]")].map(({ dataset }) => ({ ...dataset }));
  let data = null;
  const draw = (view = chosen()) => {
    if (!data) return;
    const lines = keys.filter(({ run }) => data.curves[run]).map(({ run, colour }) => (
      { label: `run ${run}`, colour, columns: data.curves[run], live: data.live.includes(Number(run)) }));
    panels.show(lines, view);
  };
  const chosen = choices(draw);
  keepCurrent((news) => { data = news; draw(); });
}

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(text.value);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    } catch { // not allowed here, or not over HTTPS: mark it, and the keyboard does the rest
      text.select();
    }
  });
}
