// The comparison: curves of all runs in their own colors, and what goes into a pull request.

import "./copy.js";
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
    const lines = keys.filter(({ run }) => data.curves[run]).map(({ run, color }) => (
      { label: `run ${run}`, color, columns: data.curves[run], live: data.live.includes(Number(run)) }));
    panels.show(lines, view);
  };
  const chosen = choices(draw);
  keepCurrent((news) => { data = news; draw(); });
}
