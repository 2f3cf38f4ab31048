// Curves that can be read point by point: panels that share their abscissa and their cursor, of one run or of several.

const MAGNITUDES = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
const CLOCK_SIZES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const SMOOTHINGS = { none: 0, light: 1 / 100, medium: 1 / 50, strong: 1 / 12 };
const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const CROWD = 60; // so many evaluations are drawn small
const MAY_BE_LOG = ["loss", "gradient_norm"];
const NAMED_DASHES = { baseline: [6, 4], left: [3, 2], back: [1, 4] };
const TINTS = { before: "quiet", left: "noise", back: "now" };
const DASHES = [[], [7, 4], [], [2, 3], [], [9, 3, 2, 3], [], [4, 4], [], [1, 3]];

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

function power(value) {
  if (!value) return "0";
  const [mantissa, exponent] = value.toExponential(1).split("e");
  return `${mantissa}\u00a0×\u00a010${[...exponent.replace("+", "")].map((digit) => RAISED[digit] ?? "⁻").join("")}`;
}

const short = (value) => (Math.abs(value) >= 1e3 ? compact(value) : `${Number(value.toPrecision(3))}`);
const written = { tokens: compact, flops: power, seconds: duration, step: compact };
const named = { tokens: "tokens", flops: "FLOPs", seconds: "training time", step: "steps" };

// As the site does it: an average over a share of the series, over less where it falls steeply at its start.
function smooth(values, share) {
  const known = values.filter((value) => value != null).length;
  let last = null, seen = 0;
  return values.map((value) => {
    if (value == null) return null;
    const reach = Math.max(1, Math.min(Math.max(known * share, 4), seen++ / 6));
    last = last == null ? value : last + (value - last) / reach;
    return last;
  });
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const tint = (name) => color(/^\d$/.test(name) ? `run-${name}` : TINTS[name] ?? name);

// A line of a panel: { id, label, color, columns, alone }. `alone` has its noise and its evaluations drawn too.
export class Panels {
  constructor(main, small) {
    this.figures = [main, ...small].filter(Boolean);
    this.main = main;
    this.lines = [];
    this.view = {};
    this.plots = new Map(); // a figure: its uPlot
    this.shown = new Map(); // a figure: what is drawn in it
    this.zoom = null;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(true));
    const sizes = new ResizeObserver((entries) => {
      for (const { target } of entries) this.plots.get(target)?.setSize(this.size(target));
    });
    this.figures.forEach((figure) => sizes.observe(figure));
  }

  // Show these lines this way; `anew` where more has changed than their numbers.
  show(lines, view, anew) {
    const same = lines.length === this.lines.length && JSON.stringify(view) === JSON.stringify(this.view);
    [this.lines, this.view] = [lines, { ...view }];
    this.draw(anew || !same);
  }

  draw(anew) {
    if (!this.lines.some((line) => line.columns?.train.step.length)) return;
    if (anew) this.zoom = null;
    const shown = this.lines.filter((line) => line.columns?.train.step.length);
    this.end = Math.max(...shown.map((line) => line.columns.end[this.view.x]));
    this.begin = Math.min(...shown.map((line) => line.columns.train[this.view.x].find((value) => value > 0) ?? this.end));
    this.gentle = this.afterTheFall(shown);
    for (const figure of this.figures) this.drawOne(figure, shown, anew);
  }

  // Where the loss lies after its first steep fall, so that the rest is readable.
  afterTheFall(lines) {
    const series = this.losses(lines).filter((one) => !one.dots);
    const since = Math.max(...series.map(({ x }) => x.at(-1))) / 25;
    const values = series.flatMap(({ x, values }) => values.filter((value, at) => value != null && x[at] >= since));
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const margin = (high - low) * 0.06 || 0.5;
    return [low - margin, high + margin];
  }

  drawOne(figure, lines, anew) {
    const metric = figure === this.main ? "loss" : figure.dataset.metric;
    const series = metric === "loss" ? this.losses(lines) : this.metric(lines, metric);
    if (!series.length) return;
    this.shown.set(figure, series);
    const data = uPlot.join(series.map(({ x, values }) => [x, values]));
    const plot = this.plots.get(figure);
    if (plot && !anew) {
      plot.setData(data, !this.zoom);
      return;
    }
    plot?.destroy();
    figure.querySelector(".chart, .empty")?.remove();
    const name = figure === this.main ? "plot" : "small-plot";
    const place = figure.querySelector(`.${name}`) ?? figure.appendChild(document.createElement("div"));
    place.className = name;
    if (figure === this.main) figure.insertBefore(place, figure.firstChild);
    figure.classList.add("is-plotted");
    this.plots.set(figure, new uPlot({ ...this.size(figure), ...this.options(figure, metric, series) }, data, place));
  }

  // The loss: smoothed lines, under them the noise of the run that is alone, on them its evaluations.
  losses(lines) {
    const { x, smoothing } = this.view;
    const found = [];
    for (const line of lines) {
      const { train, dev } = line.columns;
      const calm = smoothing === "medium" || !train.loss ? train.smooth : smooth(train.loss, SMOOTHINGS[smoothing]);
      const drawn = smoothing === "none" && train.loss ? train.loss : calm;
      if (line.alone && smoothing !== "none") found.push({ x: train[x], values: train.loss, label: "training loss", stroke: "noise", width: 1 });
      const label = line.alone ? (smoothing === "none" ? "training loss" : "smoothed") : line.label;
      found.push({ x: train[x], values: drawn, label, stroke: line.color, width: 2, last: line.live });
      if (line.alone && dev.step.length) found.push({ x: dev[x], values: dev.loss, label: "dev loss", stroke: "better", dots: true });
    }
    return found;
  }

  metric(lines, metric) {
    const share = metric === "learning_rate" ? 0 : SMOOTHINGS[this.view.smoothing];
    return lines.filter((line) => line.columns.train[metric]).map((line) => ({
      x: line.columns.train[this.view.x],
      values: share ? smooth(line.columns.train[metric], share) : line.columns.train[metric],
      label: line.label, stroke: line.color, width: 1.5,
    }));
  }

  size(figure) {
    const width = figure.clientWidth;
    return figure === this.main ? { width, height: Math.max(260, Math.min(440, width * 0.45)) } : { width, height: 136 };
  }

  // Where the train is now.
  markLast(plot, at) {
    const last = plot.data[at].findLastIndex((value) => value != null);
    if (last < 0) return;
    const [x, y] = [plot.valToPos(plot.data[0][last], "x", true), plot.valToPos(plot.data[at][last], "y", true)];
    if (x > plot.bbox.left + plot.bbox.width + 1 || x < plot.bbox.left) return; // out of what is zoomed into
    plot.ctx.setLineDash([]); // a dashed line may have been drawn before
    plot.ctx.beginPath();
    plot.ctx.arc(x, y, 5 * devicePixelRatio, 0, 7);
    plot.ctx.fillStyle = color("now");
    plot.ctx.strokeStyle = color("paper");
    plot.ctx.lineWidth = 2 * devicePixelRatio;
    plot.ctx.fill();
    plot.ctx.stroke();
  }

  zoomTo(plot) {
    const { left, width } = plot.select;
    if (width < 4 || this.zooming) return;
    this.zooming = true;
    this.zoom = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    for (const other of this.plots.values()) {
      other.setScale("x", { min: this.zoom[0], max: this.zoom[1] });
      other.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    }
    this.zooming = false;
  }

  unzoom() {
    this.zoom = null;
    for (const other of this.plots.values()) other.setData(other.data, true);
  }

  // Which column of a panel is its run's own: the last of those drawn beneath each other, or the first of equals.
  firstOf(figure) {
    const at = this.shown.get(figure).findIndex(({ stroke }) => stroke === "ink");
    return at < 0 ? 1 : at + 1;
  }

  // What stands beside a small panel's name: its own line's value under the cursor, else its last.
  read(plot, figure) {
    const place = figure.querySelector(".reading");
    const values = plot.data[this.firstOf(figure)], at = plot.cursor.idx;
    if (figure === this.main && at == null) plot.setLegend({ idx: values.findLastIndex((value) => value != null) }, false);
    if (!place) return;
    const near = at == null ? null : values[at] ?? values.slice(0, at).findLast((value) => value != null);
    const value = near ?? values.findLast((value) => value != null);
    if (value != null) place.textContent = short(value);
  }

  options(figure, metric, series) {
    const { x, logX, logY } = this.view;
    const isMain = figure === this.main;
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: color("quiet"), font, ticks: { show: false }, grid: { stroke: color("line"), width: 1 } };
    const three = (plot, value) => (value == null ? "–" : value.toFixed(3));
    const log = logY && MAY_BE_LOG.includes(metric);
    const range = (plot, low, high) => {
      if (low == null) return [0, 1];
      if (log) return [low / 1.05, high * 1.05];
      if (metric === "loss" && !this.zoom && !logX) return this.gentle;
      if (["loss", "temperature_celsius"].includes(metric)) return uPlot.rangeNum(low, high, 0.1, false);
      return [0, high * 1.06 || 1];
    };
    return {
      cursor: { drag: { x: true, y: false, setScale: false }, sync: { key: "panels" }, bind: { dblclick: () => () => { this.unzoom(); return null; } } },
      legend: { show: isMain, live: true },
      hooks: {
        setSelect: [(plot) => this.zoomTo(plot)],
        setCursor: [(plot) => this.read(plot, figure)],
        ready: [(plot) => this.read(plot, figure)],
        draw: [(plot) => series.forEach((one, at) => { if (one.last) this.markLast(plot, at + 1); })],
      },
      scales: {
        x: { time: false, distr: logX ? 3 : 1, range: () => this.zoom ?? [logX ? this.begin : 0, this.end] },
        y: { distr: log ? 3 : 1, range },
      },
      axes: [
        { ...axis, grid: { show: false }, size: isMain ? 40 : 28, space: isMain ? 90 : 64, incrs: x === "seconds" && !logX ? CLOCK_SIZES : undefined, values: (plot, ticks) => ticks.map((tick) => (tick == null ? "" : written[x](tick))), ...(logX ? { splits: logSplits(isMain ? 8 : 4) } : {}) },
        { ...axis, size: 52, space: isMain ? 48 : 32, values: (plot, ticks) => ticks.map((tick) => (tick == null ? "" : short(tick))), ...(log ? { splits: logSplits(isMain ? 8 : 4) } : {}) },
      ],
      series: [
        { label: named[x], value: (plot, value) => (value == null ? "–" : written[x](value)) },
        ...series.map((one) => (one.dots
          ? { label: one.label, stroke: tint(one.stroke), width: 0, paths: () => null, points: { show: true, size: one.x.length > CROWD ? 4 : 8, width: one.x.length > CROWD ? 1 : 2, fill: color("paper"), stroke: tint(one.stroke) }, value: three }
          : { label: one.label, stroke: tint(one.stroke), width: one.width, dash: /^\d$/.test(one.stroke) ? DASHES[one.stroke] : NAMED_DASHES[one.stroke] ?? [], spanGaps: true, points: { show: false }, value: three })),
      ],
    };
  }
}

// Round values on a logarithmic axis, at most so many.
function logSplits(most) {
  return (plot, axis, low, high) => {
    const decades = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) decades.push(10 ** power);
    let found = [];
    for (const digits of [[1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 4, 6, 8], [1, 2, 5], [1, 3], [1]]) {
      found = decades.flatMap((size) => digits.map((digit) => digit * size)).filter((value) => value >= low && value <= high);
      if (found.length <= most) break;
    }
    return found.length > 2 ? found : evenSplits(low, high, most);
  };
}

// So little of the axis is seen that it is nearly a linear one.
function evenSplits(low, high, most) {
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const size = [1, 2, 5, 10].map((digit) => digit * power).find((size) => (high - low) / size <= most);
  const first = Math.ceil(low / size);
  return Array.from({ length: Math.floor(high / size) - first + 1 }, (_, at) => (first + at) * size);
}

// The choices above the panels, kept in the address: smoothing, logarithms, what lies over it, and the tabs of the abscissa.
export function choices(onChange) {
  const form = document.getElementById("choices");
  const tabs = document.getElementById("abscissae");
  document.documentElement.dataset.scripted = "";
  const read = () => {
    const form = document.getElementById("choices"); // a page that renews itself may have a new one
    const given = form ? new FormData(form) : new FormData();
    const logs = given.getAll("log");
    return {
      x: tabs.querySelector("[aria-current]").dataset.x,
      smoothing: given.get("smooth") ?? "medium",
      logX: logs.includes("x"), logY: logs.includes("y"),
      over: given.getAll("over"),
    };
  };
  const keep = () => {
    const view = read();
    const address = new URLSearchParams(location.search);
    ["smooth", "log", "over"].forEach((name) => address.delete(name));
    address.set("x", view.x);
    if (view.smoothing !== "medium") address.set("smooth", view.smoothing);
    if (view.logX) address.append("log", "x");
    if (view.logY) address.append("log", "y");
    view.over.forEach((run) => address.append("over", run));
    history.replaceState(null, "", `?${String(address).replaceAll("%2C", ",")}`);
    onChange(view);
  };
  document.addEventListener("change", ({ target }) => { if (target.form?.id === "choices") keep(); });
  document.addEventListener("submit", (event) => { if (event.target === form) { event.preventDefault(); keep(); } });
  tabs?.addEventListener("click", (event) => {
    const tab = event.target.closest("[data-x]");
    if (!tab) return;
    event.preventDefault();
    for (const other of tabs.children) other.removeAttribute("aria-current");
    tab.setAttribute("aria-current", "true");
    keep();
  });
  return read;
}
