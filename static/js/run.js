// The run page: the drawn curve becomes one that can be read point by point and zoomed.

import { keepCurrent, localTimes, startClock } from "./live.js";

const MAGNITUDES = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
const CLOCK_SIZES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

function compact(value) {
  const [size, letter] = MAGNITUDES.find(([size]) => Math.abs(value) >= size) ?? [1, ""];
  return `${Number((value / size).toPrecision(3))}${letter && "\u00a0"}${letter}`;
}

function duration(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole}\u00a0s`;
  const [size, unit, smaller, smallUnit] =
    whole < 3600 ? [60, "min", 1, "s"] : whole < 86400 ? [3600, "h", 60, "min"] : [86400, "d", 3600, "h"];
  const rest = Math.floor((whole % size) / smaller);
  return `${Math.floor(whole / size)}\u00a0${unit}${rest ? `\u00a0${String(rest).padStart(2, "0")}\u00a0${smallUnit}` : ""}`;
}

const written = { tokens: compact, seconds: duration, step: compact };
const named = { tokens: "tokens", seconds: "training time", step: "steps" };

class Plot {
  constructor(figure, x) {
    this.figure = figure;
    this.x = x;
    this.data = null;
    this.uplot = null;
    this.colours = matchMedia("(prefers-color-scheme: dark)");
    this.colours.addEventListener("change", () => this.draw(true));
    new ResizeObserver(() => this.uplot?.setSize(this.size())).observe(figure);
  }

  size() {
    return { width: this.figure.clientWidth, height: Math.max(260, Math.min(440, this.figure.clientWidth * 0.45)) };
  }

  show({ curve, wait }) {
    this.data = curve;
    this.live = wait > 0;
    this.draw(false);
  }

  over(x) {
    this.x = x;
    this.draw(true);
  }

  draw(anew) {
    if (!this.data?.train.step.length) return;
    const columns = joined(this.data, this.x);
    this.figure.dataset.points = this.data.train.step.at(-1);
    if (this.uplot && !anew) {
      this.ends = this.data.end[this.x];
      this.uplot.setData(columns, !this.zoomed);
      return;
    }
    this.uplot?.destroy();
    this.figure.querySelector(".chart, .empty")?.remove();
    this.ends = this.data.end[this.x];
    this.zoomed = false;
    const place = this.figure.querySelector(".plot") ?? this.figure.insertBefore(document.createElement("div"), this.figure.firstChild);
    place.className = "plot";
    this.figure.classList.add("is-plotted");
    this.uplot = new uPlot({ ...this.size(), ...this.options() }, columns, place);
  }

  // Where the train is now.
  markLast(plot, now, paper) {
    if (!this.live) return;
    const last = plot.data[2].findLastIndex((value) => value != null);
    const [x, y] = [plot.valToPos(plot.data[0][last], "x", true), plot.valToPos(plot.data[2][last], "y", true)];
    plot.ctx.beginPath();
    plot.ctx.arc(x, y, 5 * devicePixelRatio, 0, 7);
    plot.ctx.fillStyle = now;
    plot.ctx.strokeStyle = paper;
    plot.ctx.lineWidth = 2 * devicePixelRatio;
    plot.ctx.fill();
    plot.ctx.stroke();
  }

  options() {
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: colour("quiet"), font, ticks: { show: false }, grid: { stroke: colour("line"), width: 1 } };
    const write = written[this.x];
    const three = (plot, value) => (value == null ? "–" : value.toFixed(3));
    return {
      cursor: { drag: { x: true, y: false } },
      legend: { live: true },
      hooks: {
        setSelect: [() => { this.zoomed = true; }],
        draw: [(plot) => this.markLast(plot, colour("now"), colour("paper"))],
      },
      scales: { x: { time: false, range: (plot, low, high) => (this.zoomed ? [low, high] : [0, this.ends]) } },
      axes: [
        { ...axis, grid: { show: false }, space: 90, incrs: this.x === "seconds" ? CLOCK_SIZES : undefined, values: (plot, ticks) => ticks.map(write) },
        { ...axis, size: 48, space: 48 },
      ],
      series: [
        { label: named[this.x], value: (plot, value) => (value == null ? "–" : write(value)) },
        { label: "training loss", stroke: colour("noise"), width: 1, spanGaps: true, points: { show: false }, value: three },
        { label: "smoothed", stroke: colour("ink"), width: 2, spanGaps: true, points: { show: false }, value: three },
        { label: "dev loss", stroke: colour("better"), width: 0, paths: () => null, points: { show: true, size: 8, width: 2, fill: colour("paper"), stroke: colour("better") }, value: three },
      ],
    };
  }
}

// One x column for both series, in order, with gaps where a series has no value.
function joined({ train, dev }, x) {
  return uPlot.join([
    [train[x], train.loss, train.smooth],
    [dev[x], dev.loss],
  ]);
}

localTimes(document);
startClock();
const tabs = document.getElementById("abscissae");
const plot = new Plot(document.getElementById("curve"), tabs.querySelector("[aria-current]").dataset.x);
tabs.addEventListener("click", (event) => {
  const tab = event.target.closest("[data-x]");
  if (!tab) return;
  event.preventDefault();
  history.replaceState(null, "", `?x=${tab.dataset.x}`);
  for (const other of tabs.children) other.removeAttribute("aria-current");
  tab.setAttribute("aria-current", "true");
  plot.over(tab.dataset.x);
});
// The log stays at its last line, unless somebody has scrolled up to read.
const log = document.getElementById("log");
let follow = true;
const toEnd = () => { if (follow && log.firstElementChild) log.firstElementChild.scrollTop = log.firstElementChild.scrollHeight; };
log.addEventListener("scroll", ({ target }) => { follow = target.scrollTop + target.clientHeight > target.scrollHeight - 24; }, true);
toEnd();

keepCurrent((data) => {
  plot.show(data);
  toEnd();
});
