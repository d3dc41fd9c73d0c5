// Two ticked rows side by side: scores with what the tables claim about their difference, and costs as ratios.
const differenceText = (task, value) => (task.metric === "bits_per_character"
  ? `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)} bits` : `${value < 0 ? "−" : "+"}${Math.abs(100 * value).toFixed(1)} points`);

// What is known about one row (A) minus the other (B). Intervals exist for comparisons with the reference row only.
const claimOf = (task, a, b) => {
  const isReference = (row) => row.compared?.verdict === "reference";
  const withReference = (row, base) => `${row.name} − ${base.name}: ${[row.compared.difference, row.compared.verdict].filter(Boolean).join(", ")}`;
  if (isReference(b) && a.compared) return withReference(a, b);
  if (isReference(a) && b.compared) return withReference(b, a);
  if (a.score === null || b.score === null) return "not compared: no score";
  const means = `${differenceText(task, a.score - b.score)} between the means, `;
  if (Math.min(a.seeds, b.seeds) < DATA.minSeeds) return `${means}no claim: fewer than ${DATA.minSeeds} seeds`;
  if (areTied(a, b)) return `${means}no difference shown`;
  const better = areTied(a, b) === false ? a : areTied(b, a) === false ? b : null;
  if (!better) return `${means}no claim: not compared with each other`;
  return `${means}${better.name} is better${everySeed(a, b)} (all pairs corrected together)`;
};

const showPair = (task, state, change) => {
  const panel = byId("pair");
  const rows = task.bodies.flatMap((body) => body.rows.map((row) => ({ ...row, body: body.kind })));
  const chosen = listed(state.pair).map((id) => rows.find((row) => row.id === id)).filter(Boolean);
  panel.hidden = !chosen.length;
  if (!chosen.length) return panel.replaceChildren();
  const close = make("button", { type: "button", class: "quiet", "data-focus": "close-pair", onclick: () => change({ pair: "" }) }, "Close");
  if (chosen.length < 2) return panel.replaceChildren(make("p", {}, `${chosen[0].name} ticked: tick a second row to compare.`), close);
  const [a, b] = chosen;
  const together = a.body === b.body && a.body !== "edge";
  const claim = together ? claimOf(task, a, b) : "no claim: the rows are not ranked together";
  const costs = COSTS.filter((name) => costOf(a, name) !== null && costOf(b, name) !== null).map((name) => {
    const column = costColumn(task, name);
    const ratio = column.machine && a.hardware !== b.hardware ? "other hardware" : `${Number((costOf(a, name) / costOf(b, name)).toPrecision(3))}×`;
    return make("tr", {}, make("th", { scope: "row" }, column.heading), ...chosen.map((row) => make("td", {}, row.cells[name].text)), make("td", {}, ratio));
  });
  const score = (row) => make("td", {}, row.cells.score ? scoreText(row, task) : "");
  return panel.replaceChildren(
    make("div", { class: "scroll", tabindex: 0 }, make("table", {},
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, task.title), ...chosen.map((row) => make("th", { scope: "col" }, dot(row.look), row.name)), make("th", { scope: "col" }, "first / second"))),
      make("tbody", {}, make("tr", {}, make("th", { scope: "row" }, "score"), ...chosen.map(score), make("td")), ...costs))),
    make("p", { class: "claim" }, claim), close);
};
