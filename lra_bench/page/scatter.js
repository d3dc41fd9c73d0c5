// Score over one cost, with the floor, the budget, and the front: rows that no cheaper row reaches.
const FONT = 11;

const frontOf = (rows, task, cost) => {
  const front = [];
  for (const row of [...rows].sort((one, other) => costOf(one, cost) - costOf(other, cost) || byScore(task)(one, other))) {
    if (!front.length || byScore(task)(row, front.at(-1)) < 0) front.push(row);
  }
  return front;
};

// Labels are placed at the first of four positions where they overlap neither points nor other labels, or left out.
// Points of the same name that overlap, such as those of one system on two boards, have one label.
const placeLabels = (points, room, others) => {
  const taken = [...others, ...points.map(({ x, y }) => [x - 6, y - 6, x + 6, y + 6])];
  const labels = [];
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
  const repeats = (point, earlier) => earlier.some(({ x, y, name }) => name === point.name && Math.hypot(x - point.x, y - point.y) < 9);
  for (const point of points.filter((each, number) => !repeats(each, points.slice(0, number)))) {
    const { x, y, name } = point;
    const text = name.length > 26 ? `${name.slice(0, 25)}…` : name;
    const { width } = pen.measureText(text);
    const tries = [[x + 9, y + 4, "start"], [x - 9 - width, y + 4, "end"], [x - width / 2, y - 10, "middle"], [x - width / 2, y + 18, "middle"]];
    for (const [left, base, anchor] of tries) {
      const box = [left, base - FONT, left + width, base + 3];
      const free = taken.every((other) => box[0] >= other[2] || box[2] <= other[0] || box[1] >= other[3] || box[3] <= other[1]);
      if (free && box[0] >= room.left && box[2] <= room.right && box[1] >= room.top && box[3] <= room.bottom) {
        taken.push(box);
        labels.push(draw("text", { x: { start: left, middle: x, end: left + width }[anchor], y: base, "text-anchor": anchor, class: point.out ? "out" : "label" }, text));
        break;
      }
    }
  }
  return labels;
};

const drawPoint = ({ x, y, row, out, mixed, note }) => {
  const kind = `${canWin(row) ? "able" : "few"}${out ? " out" : ""} ${row.look}`;
  const shape = mixed && row.own
    ? draw("path", { class: kind, d: `M${x} ${y - 7}L${x + 7} ${y}L${x} ${y + 7}L${x - 7} ${y}Z` })
    : draw("circle", { class: kind, cx: x, cy: y, r: 4.5 });
  shape.append(draw("title", {}, note));
  return shape;
};

const drawScatter = (task, state, cost, width, height) => {
  const rows = rankedRows(task, state).filter((row) => row.score !== null && costOf(row, cost) !== null);
  const limits = limitsOf(task, state);
  const front = frontOf(rows.filter((row) => canWin(row) && fits(row, limits)), task, cost);
  const bits = task.metric === "bits_per_character";
  const shown = (score) => (bits ? score : 100 * score);
  const floor = task.floor ? shown(task.floor.value) : null;
  const limit = limits.find(([name]) => name === cost)?.[1];
  const xs = rows.map((row) => costOf(row, cost));
  const scale = Math.min(...xs) > 0 && Math.max(...xs) > 3 * Math.min(...xs) ? "log" : "linear";
  const xAxis = axisOf(xs, scale, 0.08);
  const yAxis = axisOf([...rows.map((row) => shown(row.score)), floor ?? shown(rows[0].score)], "linear", 0.12);
  const room = { left: 46, right: width - 12, top: 10, bottom: height - 40 };
  const x = (value) => Number((room.left + xAxis.at(value) * (room.right - room.left)).toFixed(1));
  const up = (value) => (bits ? 1 - yAxis.at(value) : yAxis.at(value));
  const y = (value) => Number((room.bottom - up(value) * (room.bottom - room.top)).toFixed(1));
  const mixed = isMixed(protocolOf(state));
  const important = (row) => 2 * front.includes(row) + (mixed && row.own ? 1 : 0);
  const points = [...rows].sort((one, other) => important(other) - important(one) || byScore(task)(one, other)).map((row) => ({
    x: x(costOf(row, cost)), y: y(shown(row.score)), row, name: row.name, out: !fits(row, limits), mixed,
    note: `${row.name}: ${scoreText(row, task)}, ${formatCost(row, cost)}`,
  }));
  const ticks = scale === "log" ? decadeTicks(10 ** xAxis.low, 10 ** xAxis.high) : linearTicks(xAxis.low, xAxis.high).filter((tick) => tick >= xAxis.low);
  const corners = front.map((row) => [x(costOf(row, cost)), y(shown(row.score))]);
  const path = corners.map(([at, height], number) => (number ? `H${at}V${height}` : `M${at} ${height}`));
  const lines = corners.slice(1).flatMap(([at, height], number) => [[corners[number][0], corners[number][1], at, corners[number][1]], [at, height, at, corners[number][1]]]);
  const bound = limit > 0 && xAxis.at(limit) > 0 && xAxis.at(limit) < 1 ? x(limit) : null;
  if (bound !== null) lines.push([bound, room.top, bound, room.bottom]);
  if (floor !== null) lines.push([room.left, y(floor), room.right, y(floor)], [room.right - 34, y(floor) - 14, room.right, y(floor) + 16]);
  const names = front.map((row) => row.name).join(", ");
  return draw("svg", {
    class: "chart scatter", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `Score over ${costColumn(task, cost).heading}. ${names ? `Front: ${names}` : "No system is on the front"}`,
  },
  ...linearTicks(yAxis.low, yAxis.high).map((tick) => draw("g", {},
    draw("line", { class: "grid", x1: room.left, x2: room.right, y1: y(tick), y2: y(tick) }),
    draw("text", { x: room.left - 6, y: y(tick) + 4, "text-anchor": "end" }, short(tick)))),
  ...ticks.map((tick) => draw("g", {},
    draw("line", { class: "tick", x1: x(tick), x2: x(tick), y1: room.bottom, y2: room.bottom + 4 }),
    draw("text", { x: x(tick), y: room.bottom + 16, "text-anchor": "middle" }, short(tick)))),
  draw("line", { class: "axis", x1: room.left, x2: room.right, y1: room.bottom, y2: room.bottom }),
  draw("text", { x: (room.left + room.right) / 2, y: height - 6, "text-anchor": "middle" }, `${costColumn(task, cost).heading}${scale === "log" ? " (logarithmic)" : ""}`),
  floor === null ? null : draw("line", { class: "floor", x1: room.left, x2: room.right, y1: y(floor), y2: y(floor) }),
  floor === null ? null : draw("text", { x: room.right, y: y(floor) + (bits ? -4 : 13), "text-anchor": "end" }, "floor"),
  bound === null ? null : draw("line", { class: "limit", x1: bound, x2: bound, y1: room.top, y2: room.bottom }),
  front.length > 1 ? draw("path", { class: "front", d: path.join("") }) : null,
  ...points.map(drawPoint).reverse(), ...placeLabels(points, room, lines));
};

const showScatter = (task, state, change) => {
  const place = byId("scatter");
  const names = comparableCosts(task, state);
  const cost = chosenCost(task, state);
  place.hidden = !cost;
  if (!cost) return;
  const options = names.map((name) => make("option", { value: name, selected: name === cost }, costColumn(task, name).heading));
  const unit = task.metric === "bits_per_character" ? "bits per character, fewer is better (top)" : "score in %";
  const choice = make("select", { "data-focus": "cost", "aria-label": "Cost", onchange: (event) => change({ cost: event.target.value }) }, ...options);
  const heading = make("h2", {}, "Score over ", choice, make("small", {}, unit));
  place.replaceChildren(heading);
  const width = Math.max(place.clientWidth, 280);
  place.append(drawScatter(task, state, cost, width, isNarrow() ? 270 : 300),
    make("p", { class: "remark" }, `Line: front of the systems with ${DATA.minSeeds} seeds above the floor; neighbours on it need not differ. Hollow: fewer seeds, or not shown to be above the floor.`));
};
