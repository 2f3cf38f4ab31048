// The comparison page: the curves of all its runs, each in its own color.

import { CurvePanels, connectViewForm } from "./curves.js";
import { startClock, startPolling } from "./live.js";
startClock();

const figure = document.getElementById("curve");
if (document.getElementById("choices")) {
  const panels = new CurvePanels(figure);
  const keys = [...figure.querySelectorAll("[data-run]")].map(({ dataset }) => ({ ...dataset }));
  let data = null;
  const drawCurves = () => {
    if (!data) return;
    const lines = keys.filter(({ run }) => data.curves[run]).map(({ run, color }) => (
      { label: `run ${run}`, color, columns: data.curves[run], isLive: data.live.includes(Number(run)) }));
    panels.show(lines, readView());
  };
  const readView = connectViewForm(drawCurves);
  startPolling((response) => { data = response; drawCurves(); });
}
