// Interactive charts of one run or of several: panels with one x axis and one cursor.

const MAGNITUDES = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
const SECOND_INCREMENTS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const SMOOTHINGS = { none: 0, light: 1 / 100, medium: 1 / 50, strong: 1 / 12 }; // share of the series in the average
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const MAX_LARGE_DOTS = 60; // more evaluations than this get small dots
const STEEP = 1 / 25; // first part of a loss curve that may leave the chart at the top, see `panels.py`
const LOG_METRICS = ["loss", "gradient_norm"];
const COLOR_NAMES = { before: "quiet", left: "noise", back: "now" };
const NAMED_DASHES = { baseline: [6, 4], left: [3, 2], back: [1, 4] };
const RUN_DASHES = [[], [7, 4], [], [2, 3], [], [9, 3, 2, 3], [], [4, 4], [], [1, 3]]; // as in curves.css

function formatCompact(value) {
  const [size, letter] = MAGNITUDES.find(([size]) => Math.abs(value) >= size) ?? [1, ""];
  return `${Number((value / size).toPrecision(3))}${letter && "\u00a0"}${letter}`;
}

function formatDuration(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole}\u00a0s`;
  const [size, unit, smallSize, smallUnit] =
    whole < 3600 ? [60, "min", 1, "s"] : whole < 86400 ? [3600, "h", 60, "min"] : [86400, "d", 3600, "h"];
  const rest = Math.floor((whole % size) / smallSize);
  return `${Math.floor(whole / size)}\u00a0${unit}${rest ? `\u00a0${String(rest).padStart(2, "0")}\u00a0${smallUnit}` : ""}`;
}

function formatPower(value) {
  if (!value) return "0";
  const [mantissa, exponent] = value.toExponential(1).split("e");
  const digits = [...exponent.replace("+", "")].map((digit) => SUPERSCRIPTS[digit] ?? "⁻").join("");
  return `${mantissa}\u00a0×\u00a010${digits}`;
}

function formatShort(value) {
  return Math.abs(value) >= 1e3 ? formatCompact(value) : `${Number(value.toPrecision(3))}`;
}

function formatLoss(value) {
  return value == null ? "–" : value.toFixed(3);
}

const X_FORMATS = { tokens: formatCompact, flops: formatPower, seconds: formatDuration, step: formatCompact };
const X_LABELS = { tokens: "tokens", flops: "FLOPs", seconds: "training time", step: "steps" };

// Return an exponential moving average over a share of the series, and over less at its steep start, as
// `smooth_values` in `curve_svg.py` does.
function smoothValues(values, share) {
  const count = values.filter((value) => value != null).length;
  let average = null, position = 0;
  return values.map((value) => {
    if (value == null) return null;
    const length = Math.max(1, Math.min(Math.max(count * share, 4), position++ / 6));
    average = average == null ? value : average + (value - average) / length;
    return average;
  });
}

function getColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Return the color of a line, which has the number of a run in a comparison or a name.
function getLineColor(name) {
  return getColor(/^\d$/.test(name) ? `run-${name}` : COLOR_NAMES[name] ?? name);
}

// The charts of a page: the loss in `mainFigure`, and other metrics in the small panels below it. A line is an object
// { label, color, columns, isOwn, isLive }: `isOwn` adds its unsmoothed loss and its evaluations, `isLive` a dot at its
// last point.
export class CurvePanels {
  constructor(mainFigure) {
    this.mainFigure = mainFigure;
    this.lines = [];
    this.view = {};
    this.figures = [];
    this.plots = new Map(); // figure to its uPlot
    this.series = new Map(); // figure to the series that its plot has
    this.zoom = null; // [low, high] of the x axis
    this.isZooming = false;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(true));
    this.resizeObserver = new ResizeObserver((entries) => {
      for (const { target } of entries) this.plots.get(target)?.setSize(this.getSize(target));
    });
  }

  // Show these lines in this view. The zoom is reset if something other than the lines' points has changed.
  show(lines, view) {
    const isSame = lines.length === this.lines.length && JSON.stringify(view) === JSON.stringify(this.view);
    [this.lines, this.view] = [lines, { ...view }];
    this.draw(!isSame);
  }

  draw(isNew) {
    const lines = this.lines.filter((line) => line.columns?.train.step.length);
    if (!lines.length) return;
    if (isNew) this.zoom = null;
    this.end = Math.max(...lines.map((line) => line.columns.end[this.view.x]));
    this.begin = Math.min(...lines.map((line) => line.columns.train[this.view.x].find((value) => value > 0) ?? this.end));
    this.lossRange = this.findLossRange(lines);
    this.findFigures();
    for (const figure of this.figures) this.drawFigure(figure, lines, isNew);
  }

  // The small panels come with a run's first steps, which may be after the page was loaded.
  findFigures() {
    for (const figure of [this.mainFigure, ...document.querySelectorAll("#panels .panel")]) {
      if (this.figures.includes(figure)) continue;
      this.figures.push(figure);
      this.resizeObserver.observe(figure);
    }
  }

  // Leave out the steep start, so that the rest uses the chart's height.
  findLossRange(lines) {
    const series = this.buildLossSeries(lines).filter((one) => !one.isDots);
    const begin = Math.max(...series.map(({ x }) => x.at(-1))) * STEEP;
    const values = series.flatMap(({ x, values }) => values.filter((value, i) => value != null && x[i] >= begin));
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const margin = (high - low) * 0.06 || 0.5;
    return [low - margin, high + margin];
  }

  drawFigure(figure, lines, isNew) {
    const metric = figure === this.mainFigure ? "loss" : figure.dataset.metric;
    const series = metric === "loss" ? this.buildLossSeries(lines) : this.buildMetricSeries(lines, metric);
    if (!series.length) return;
    const hasSameSeries = joinLabels(series) === joinLabels(this.series.get(figure) ?? []);
    this.series.set(figure, series);
    const data = uPlot.join(series.map(({ x, values }) => [x, values]));
    const plot = this.plots.get(figure);
    if (plot && !isNew && hasSameSeries) {
      plot.setData(data);
      return;
    }
    plot?.destroy();
    figure.querySelector(".chart, .empty")?.remove();
    const name = figure === this.mainFigure ? "plot" : "small-plot";
    const box = figure.querySelector(`.${name}`) ?? figure.appendChild(document.createElement("div"));
    box.className = name;
    if (figure === this.mainFigure) figure.insertBefore(box, figure.firstChild);
    figure.classList.add("is-plotted");
    this.plots.set(figure, new uPlot({ ...this.getSize(figure), ...this.buildOptions(figure, metric, series) }, data, box));
  }

  // Later series are drawn on top: a run's own line over its unsmoothed loss, and its evaluations over both.
  buildLossSeries(lines) {
    const { x, smoothing } = this.view;
    const isSmooth = smoothing !== "none";
    const result = [];
    for (const line of lines) {
      const { train, dev } = line.columns;
      const smooth = smoothing === "medium" || !train.loss ? train.smooth : smoothValues(train.loss, SMOOTHINGS[smoothing]);
      const label = line.isOwn ? (isSmooth ? "smoothed" : "training loss") : line.label;
      if (line.isOwn && isSmooth) {
        result.push({ x: train[x], values: train.loss, label: "training loss", stroke: "noise", width: 1 });
      }
      const values = !isSmooth && train.loss ? train.loss : smooth;
      result.push({ x: train[x], values, label, stroke: line.color, width: 2, isLive: line.isLive });
      if (line.isOwn && dev.step.length) {
        result.push({ x: dev[x], values: dev.loss, label: "dev loss", stroke: "better", isDots: true });
      }
    }
    return result;
  }

  buildMetricSeries(lines, metric) {
    const share = metric === "learning_rate" ? 0 : SMOOTHINGS[this.view.smoothing];
    return lines.filter((line) => line.columns.train[metric]).map((line) => ({
      x: line.columns.train[this.view.x],
      values: share ? smoothValues(line.columns.train[metric], share) : line.columns.train[metric],
      label: line.label, stroke: line.color, width: 1.5,
    }));
  }

  getSize(figure) {
    const width = figure.clientWidth;
    const height = figure === this.mainFigure ? Math.max(260, Math.min(440, width * 0.45)) : 136;
    return { width, height };
  }

  // Draw a dot at the last point of a run that is in training.
  markLastPoint(plot, column) {
    const last = plot.data[column].findLastIndex((value) => value != null);
    if (last < 0) return;
    const [x, y] = [plot.valToPos(plot.data[0][last], "x", true), plot.valToPos(plot.data[column][last], "y", true)];
    if (x > plot.bbox.left + plot.bbox.width + 1 || x < plot.bbox.left) return; // outside the zoom
    plot.ctx.setLineDash([]); // the line before may be dashed
    plot.ctx.beginPath();
    plot.ctx.arc(x, y, 5 * devicePixelRatio, 0, 7);
    plot.ctx.fillStyle = getColor("now");
    plot.ctx.strokeStyle = getColor("paper");
    plot.ctx.lineWidth = 2 * devicePixelRatio;
    plot.ctx.fill();
    plot.ctx.stroke();
  }

  // Zoom all panels to the selection in one of them.
  zoomToSelection(plot) {
    const { left, width } = plot.select;
    if (width < 4 || this.isZooming) return; // setSelect below calls this again
    this.isZooming = true;
    this.zoom = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    for (const other of this.plots.values()) {
      other.setScale("x", { min: this.zoom[0], max: this.zoom[1] });
      other.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    }
    this.isZooming = false;
  }

  resetZoom() {
    this.zoom = null;
    for (const plot of this.plots.values()) plot.setData(plot.data);
  }

  // Return the column of the page's own run, which is drawn in ink; the first one in a comparison.
  findOwnColumn(figure) {
    const index = this.series.get(figure).findIndex(({ stroke }) => stroke === "ink");
    return index < 0 ? 1 : index + 1;
  }

  // Show the own run's value under the cursor, else its last one: in a small panel's heading or in the main legend.
  updateReading(plot, figure) {
    const output = figure.querySelector(".reading");
    const values = plot.data[this.findOwnColumn(figure)], index = plot.cursor.idx;
    if (figure === this.mainFigure && index == null) {
      plot.setLegend({ idx: values.findLastIndex((value) => value != null) }, false);
    }
    if (!output) return;
    const near = index == null ? null : values[index] ?? values.slice(0, index).findLast((value) => value != null);
    const value = near ?? values.findLast((value) => value != null);
    if (value != null) output.textContent = formatShort(value);
  }

  buildOptions(figure, metric, series) {
    const { x, logX, logY } = this.view;
    const isMain = figure === this.mainFigure;
    const isLog = logY && LOG_METRICS.includes(metric);
    const logSplits = buildLogSplits(isMain ? 8 : 4);
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: getColor("quiet"), font, ticks: { show: false }, grid: { stroke: getColor("line"), width: 1 } };
    const formatTicks = (format) => (plot, ticks) => ticks.map((tick) => (tick == null ? "" : format(tick)));
    const getRange = (plot, low, high) => {
      if (low == null) return [0, 1];
      if (isLog) return [low / 1.05, high * 1.05];
      if (metric === "loss" && !this.zoom && !logX) return this.lossRange;
      if (["loss", "temperature_celsius"].includes(metric)) return uPlot.rangeNum(low, high, 0.1, false);
      return [0, high * 1.06 || 1];
    };
    return {
      cursor: {
        drag: { x: true, y: false, setScale: false },
        sync: { key: "panels" },
        points: { fill: (plot, i) => getLineColor(series[i - 1].stroke) }, // by default a blank disc hides an evaluation
        bind: { dblclick: () => () => { this.resetZoom(); return null; } },
      },
      legend: { show: isMain, live: true },
      hooks: {
        setSelect: [(plot) => this.zoomToSelection(plot)],
        setCursor: [(plot) => this.updateReading(plot, figure)],
        ready: [(plot) => this.updateReading(plot, figure)],
        draw: [(plot) => this.series.get(figure).forEach((one, i) => { if (one.isLive) this.markLastPoint(plot, i + 1); })],
      },
      scales: {
        x: { time: false, distr: logX ? 3 : 1, range: () => this.zoom ?? [logX ? this.begin : 0, this.end] },
        y: { distr: isLog ? 3 : 1, range: getRange },
      },
      axes: [
        {
          ...axis,
          grid: { show: false },
          size: isMain ? 40 : 28,
          space: isMain ? 90 : 64,
          incrs: x === "seconds" && !logX ? SECOND_INCREMENTS : undefined,
          values: formatTicks(X_FORMATS[x]),
          ...(logX ? { splits: logSplits } : {}),
        },
        {
          ...axis,
          size: 52,
          space: isMain ? 48 : 32,
          values: formatTicks(formatShort),
          ...(isLog ? { splits: logSplits } : {}),
        },
      ],
      series: [
        { label: X_LABELS[x], value: (plot, value) => (value == null ? "–" : X_FORMATS[x](value)) },
        ...series.map((one) => (one.isDots ? this.buildDotOptions(one) : this.buildLineOptions(one))),
      ],
    };
  }

  buildDotOptions({ x, label, stroke }) {
    const [size, width] = x.length > MAX_LARGE_DOTS ? [4, 1] : [8, 2];
    const points = { show: true, size, width, fill: getColor("paper"), stroke: getLineColor(stroke) };
    const value = (plot, value) => formatLoss(value);
    return { label, stroke: getLineColor(stroke), width: 0, paths: () => null, points, value };
  }

  buildLineOptions({ label, stroke, width }) {
    const dash = /^\d$/.test(stroke) ? RUN_DASHES[stroke] : NAMED_DASHES[stroke] ?? [];
    const value = (plot, value) => formatLoss(value);
    return { label, stroke: getLineColor(stroke), width, dash, spanGaps: true, points: { show: false }, value };
  }
}

function joinLabels(series) {
  return series.map(({ label }) => label).join();
}

// Return uPlot's `splits` for a logarithmic axis: round values, at most `maxCount`.
function buildLogSplits(maxCount) {
  return (plot, axis, low, high) => {
    const decades = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) decades.push(10 ** power);
    let splits = [];
    for (const digits of [[1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 4, 6, 8], [1, 2, 5], [1, 3], [1]]) {
      splits = decades.flatMap((size) => digits.map((digit) => digit * size));
      splits = splits.filter((value) => value >= low && value <= high);
      if (splits.length <= maxCount) break;
    }
    return splits.length > 2 ? splits : buildEvenSplits(low, high, maxCount); // a short range looks linear
  };
}

function buildEvenSplits(low, high, maxCount) {
  const power = 10 ** Math.floor(Math.log10((high - low) / maxCount));
  const size = [1, 2, 5, 10].map((digit) => digit * power).find((size) => (high - low) / size <= maxCount);
  const first = Math.ceil(low / size);
  return Array.from({ length: Math.floor(high / size) - first + 1 }, (_, i) => (first + i) * size);
}

// Connect the form above the panels (smoothing, logarithms, overlays) and the tabs of the x axis. A change is stored in
// the address, and `onChange` is called. Returns a function that reads the view.
export function connectViewForm(onChange) {
  const tabs = document.getElementById("abscissae");
  document.documentElement.dataset.scripted = "";
  const readView = () => {
    const form = document.getElementById("choices"); // missing until the first step, replaced when the page reloads
    const fields = form ? new FormData(form) : new FormData();
    const logAxes = fields.getAll("log");
    return {
      x: tabs.querySelector("[aria-current]").dataset.x,
      smoothing: fields.get("smooth") ?? "medium",
      logX: logAxes.includes("x"), logY: logAxes.includes("y"),
      over: fields.getAll("over"),
    };
  };
  const applyView = () => {
    const view = readView();
    const address = new URLSearchParams(location.search);
    ["smooth", "log", "over"].forEach((name) => address.delete(name));
    address.set("x", view.x);
    if (view.smoothing !== "medium") address.set("smooth", view.smoothing);
    if (view.logX) address.append("log", "x");
    if (view.logY) address.append("log", "y");
    view.over.forEach((run) => address.append("over", run));
    history.replaceState(null, "", `?${String(address).replaceAll("%2C", ",")}`);
    onChange();
  };
  document.addEventListener("change", ({ target }) => { if (target.form?.id === "choices") applyView(); });
  document.addEventListener("submit", (event) => {
    if (event.target.id !== "choices") return;
    event.preventDefault();
    applyView();
  });
  tabs?.addEventListener("click", (event) => {
    const tab = event.target.closest("[data-x]");
    if (!tab) return;
    event.preventDefault();
    for (const other of tabs.children) other.removeAttribute("aria-current");
    tab.setAttribute("aria-current", "true");
    applyView();
  });
  return readView;
}
