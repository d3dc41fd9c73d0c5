// Small SVG charts: axes, one line per series with its intervals, a legend, and a table of the numbers below.
const SIZE = { width: 290, height: 205, left: 40, right: 10, top: 10, bottom: 38 };
const DASHES = ["5 3.5", "2 2.5", "9 3 2 3"];
const SCALES = {
  linear: { to: (value) => value, from: (value) => value },
  ratio: { to: Math.log2, from: (value) => 2 ** value },
  log: { to: Math.log10, from: (value) => 10 ** value },
};

const short = (value) => {
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(3))}G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  return String(Number(value.toPrecision(3)));
};

const linearTicks = (low, high, wanted = 5) => {
  const raw = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((each) => each * power >= raw) ?? 10);
  const ticks = [];
  for (let tick = Math.ceil(low / step); tick * step <= high + step * 1e-9; tick += 1) ticks.push(tick * step);
  return ticks;
};

const decadeTicks = (low, high) => {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of [1, 2, 5]) ticks.push(factor * 10 ** power);
  }
  const inside = ticks.filter((tick) => tick >= low && tick <= high);
  const decades = inside.filter((tick) => Number.isInteger(Number(Math.log10(tick).toFixed(9))));
  return inside.length > 7 && decades.length > 1 ? decades : inside;
};

const axisOf = (values, scale, margin) => {
  const { to } = SCALES[scale];
  let [low, high] = [Math.min(...values), Math.max(...values)].map(to);
  const room = (high - low || Math.abs(high) * 0.1 || 1) * margin;
  [low, high] = [low - room, high + room];
  return { low, high, at: (value) => (to(value) - low) / (high - low) };
};

const xTicks = (values, scale, axis) => {
  if (scale === "linear") return linearTicks(0, Math.max(...values)).map((tick) => [tick, short(tick)]);
  const own = [...new Set(values)].sort((one, other) => one - other);
  const every = Math.ceil(own.length / 6);
  const name = (tick) => (scale === "ratio" ? `${tick}×` : tick % 1024 === 0 ? `${tick / 1024}k` : short(tick));
  return own.filter((_, number) => (own.length - 1 - number) % every === 0).map((tick) => [tick, name(tick)]);
};

const yTicks = (axis, scale) => {
  const { from } = SCALES[scale];
  const [low, high] = [from(axis.low), from(axis.high)];
  return (scale === "log" ? decadeTicks(low, high) : linearTicks(low, high)).map((tick) => [tick, short(tick)]);
};

const seriesPath = (points, x, y) => points.map(([at, value], number) => `${number ? "L" : "M"}${x(at)} ${y(value)}`).join("");

const dashOf = (chart, series) => {
  const others = chart.series.filter(({ style }) => style === "variant");
  return series.style === "variant" ? DASHES[others.indexOf(series) % DASHES.length] : null;
};

const drawSeries = (series, dash, x, y, dotted) => {
  const parts = [draw("path", { class: "line", d: seriesPath(series.points, x, y), "stroke-dasharray": dash })];
  for (const [at, value, low, high] of series.points) {
    if (low != null && high != null && low !== high) {
      parts.push(draw("line", { class: "span", x1: x(at), x2: x(at), y1: y(low), y2: y(high) }));
    }
    if (!dotted && series.points.length > 1) continue;
    const tooltip = `${series.name}: ${short(value)}${low != null && high != null ? ` [${short(low)}, ${short(high)}]` : ""}`;
    parts.push(draw("circle", { class: "dot", cx: x(at), cy: y(value), r: 2.6 }, draw("title", {}, tooltip)));
  }
  return draw("g", { class: `series ${series.style}` }, ...parts);
};

// Series with the same look, such as seeds, share a legend entry.
const legend = (chart, look) => {
  const entries = new Map();
  for (const series of chart.series) {
    const dash = dashOf(chart, series);
    const key = `${series.style} ${dash}`;
    entries.set(key, { style: series.style, dash, names: [...(entries.get(key)?.names ?? []), series.name] });
  }
  return make("ul", { class: "legend" }, ...[...entries.values()].map(({ style, dash, names }) => make("li", {},
    draw("svg", { class: look, viewBox: "0 0 22 8", width: 22, height: 8, "aria-hidden": "true" },
      draw("g", { class: `series ${style}` }, draw("line", { class: "line", x1: 1, x2: 21, y1: 4, y2: 4, "stroke-dasharray": dash }))),
    names.join(", "))));
};

const numbersTable = (chart) => {
  const at = [...new Set(chart.series.flatMap((series) => series.points.map(([x]) => x)))].sort((a, b) => a - b);
  const found = chart.series.map((series) => new Map(series.points.map(([x, value]) => [x, value])));
  const head = make("tr", {}, make("th", { scope: "col" }, chart.x), ...chart.series.map(({ name }) => make("th", { scope: "col" }, name)));
  const rows = at.map((x) => make("tr", {}, make("th", { scope: "row" }, x.toLocaleString("en")),
    ...found.map((values) => make("td", {}, values.has(x) ? short(values.get(x)) : "–"))));
  return make("details", { class: "numbers" }, make("summary", {}, "Numbers"),
    make("div", { class: "scroll", tabindex: 0 }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))));
};

const drawChart = (chart, look) => {
  const { width, height, left, right, top, bottom } = SIZE;
  const points = chart.series.flatMap((series) => series.points);
  const xs = points.map(([x]) => x);
  const ys = points.flatMap(([, value, low, high]) => [value, low, high]).filter((value) => value != null && (chart.yScale !== "log" || value > 0));
  const xAxis = chart.xScale === "linear" ? axisOf([0, ...xs], "linear", 0.02) : axisOf(xs, chart.xScale, 0.06);
  const yAxis = axisOf(ys, chart.yScale, 0.08);
  const round = (value) => Number(value.toFixed(1));
  const x = (value) => round(left + xAxis.at(value) * (width - left - right));
  const y = (value) => round(height - bottom - yAxis.at(value) * (height - top - bottom));
  const grid = yTicks(yAxis, chart.yScale).map(([tick, name]) => draw("g", {},
    draw("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
    draw("text", { x: left - 6, y: y(tick) + 3.5, "text-anchor": "end" }, name)));
  const below = xTicks(xs, chart.xScale).map(([tick, name]) => draw("g", {},
    draw("line", { class: "tick", x1: x(tick), x2: x(tick), y1: height - bottom, y2: height - bottom + 4 }),
    draw("text", { x: x(tick), y: height - bottom + 15, "text-anchor": "middle" }, name)));
  const trained = chart.xScale === "ratio" ? [draw("line", { class: "trained", x1: x(1), x2: x(1), y1: top, y2: height - bottom })] : [];
  const dotted = chart.xScale !== "linear";
  const description = `${chart.title}: ${chart.y} over ${chart.x}, ${chart.series.map(({ name }) => name).join(", ")}`;
  const picture = draw("svg", { class: `chart ${look}`, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": description },
    ...grid, ...trained, draw("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }), ...below,
    draw("text", { class: "name", x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, chart.x),
    ...[...chart.series].reverse().map((series) => drawSeries(series, dashOf(chart, series), x, y, dotted && series.style !== "floor")));
  return make("figure", { class: "picture" }, make("figcaption", {}, chart.title, make("small", {}, ` ${chart.y}`)),
    picture, legend(chart, look), chart.note ? make("p", { class: "remark" }, chart.note) : null, numbersTable(chart));
};
