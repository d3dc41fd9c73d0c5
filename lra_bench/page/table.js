// A table is built from its data and the state. Rows are sorted within their body by unrounded values; missing values
// are last in both directions.
const compareValues = (one, other, kind, direction) => {
  if (one === null || other === null) return (one === null) - (other === null);
  return direction * (kind === "number" ? one - other : one.localeCompare(other, "en", { numeric: true }));
};

const sortValue = (row, key) => (key === "variant" ? row.name : (row.cells[key]?.value ?? null));

// The key of a column may contain a colon, the direction does not.
const parseSort = (text) => {
  const at = text.lastIndexOf(":");
  return at < 0 ? ["", ""] : [text.slice(0, at), text.slice(at + 1)];
};

// The first click sorts best first, the second in the opposite direction, the third restores the ranking.
const nextSort = (column, text) => {
  const [key, direction] = parseSort(text);
  if (key !== column.key) return `${column.key}:${column.first}`;
  return direction === column.first ? `${key}:${column.first === "ascending" ? "descending" : "ascending"}` : "";
};

// Speed and memory are not comparable across machines: rows are grouped by hardware and sorted within each group.
const sortRows = (rows, table, text) => {
  const [key, direction] = parseSort(text);
  const column = table.columns.find((each) => each.key === key);
  if (!column) return rows;
  const kind = key === "variant" ? "text" : column.kind;
  return [...rows].sort((one, other) =>
    (column.machine ? (one.hardware ?? "").localeCompare(other.hardware ?? "") : 0) ||
    compareValues(sortValue(one, key), sortValue(other, key), kind, direction === "ascending" ? 1 : -1));
};

// The machine of most ranked rows, which the heading names; other rows name theirs.
const mainMachine = (table, state) => {
  const counts = new Map();
  for (const { hardware } of rankedRows(table, state)) {
    counts.set(hardware, (counts.get(hardware) ?? 0) + 1);
  }
  return [...counts].reduce((most, each) => (each[1] > most[1] ? each : most), ["", 0])[0];
};

const matches = (row, state) => {
  const text = `${row.name} ${row.variant ?? ""} ${row.modified ?? ""} ${(row.family ?? "").replaceAll("_", " ")}`.toLowerCase();
  return state.q.toLowerCase().split(/\s+/).every((word) => text.includes(word));
};

const whiskerOf = ({ place, low, high, floor }, look) => draw("svg", { class: `whisker ${look}`, viewBox: "0 0 100 14", preserveAspectRatio: "none", "aria-hidden": "true" },
  floor === null ? null : draw("line", { class: "floor", x1: floor, x2: floor, y1: 1, y2: 13 }),
  low === null ? null : draw("line", { class: "span", x1: low, x2: high, y1: 7, y2: 7 }),
  draw("line", { class: "point", x1: place, x2: place, y1: 7, y2: 7 }));

const badge = ({ text, help, tone }) => make("span", { class: `badge ${tone}`, title: help }, text);

const atFloor = () => make("span", { class: "letters", title: "not shown to exceed the floor (baseline without a model)" }, "°");

const heat = (cell) => (cell.value === undefined || cell.badges ? "" : ` heat h${Math.round(10 * Math.min(Math.max(cell.value, 0), 1))}`);

const cellOf = (column, cell, row) => {
  const known = { class: column.kind, "data-key": column.key };
  if (!cell) return make("td", known);
  if (column.task) {
    const help = [cell.note, cell.few ? `fewer than ${DATA.minSeeds} seeds` : ""].filter(Boolean).join(", ");
    return make("td", { ...known, class: `number skill${heat(cell)}${cell.best ? " best" : ""}${cell.few ? " few" : ""}`, title: help || null },
      cell.badges ? cell.badges.map(badge) : [make("span", { class: "figure" }, cell.text), cell.at_floor ? atFloor() : null]);
  }
  return make("td", { ...known, class: `${column.kind}${cell.best ? " best" : ""}${cell.at_floor ? " at-floor" : ""}` },
    cell.badges ? cell.badges.map(badge) : null,
    cell.text && !cell.badges ? make("span", { class: "figure" }, cell.text) : null,
    cell.spread ? [" ", make("span", { class: "spread" }, cell.spread)] : null,
    cell.tail ? [" ", make("span", { class: "tail" }, cell.tail)] : null,
    cell.at_floor ? atFloor() : null,
    cell.whisker ? whiskerOf(cell.whisker, row.look) : null);
};

const toggleRow = (row, { state, change }) => {
  OPENED.delete(row.id);
  change({ open: toggled(state.open, row.id) });
};

const nameCell = (row, view) => {
  const { state, change, mixed } = view;
  const content = [row.look ? dot(row.look) : null, row.name];
  const open = listed(state.open).includes(row.id);
  const button = row.details
    ? make("button", {
      type: "button", class: "open", "aria-expanded": String(open), "aria-controls": open ? `details-${row.id}` : null, "data-focus": `open-${row.id}`,
      onclick: () => toggleRow(row, view),
    }, ...content)
    : make("span", { class: "closed" }, ...content);
  const tick = view.ticks && row.details
    ? make("label", { class: "tick" }, make("input", {
      type: "checkbox", checked: listed(state.pair).includes(row.id), "aria-label": `Compare ${row.name}`, "data-focus": `tick-${row.id}`,
      onchange: () => change({ pair: listed(toggled(state.pair, row.id)).slice(-2).join(".") }),
    }))
    : null;
  return make("th", { scope: "row", class: "variant" }, make("div", { class: "name" }, tick,
    view.ticks ? make("span", { class: "place" }, row.cells.rank?.text ?? "") : null, button, mixed && row.own ? ownMark() : null),
  row.modified ? make("small", { class: "modified" }, row.modified) : null,
  row.hardware && row.hardware !== view.hardware ? make("small", {}, row.hardware) : null);
};

const headOf = (column, table, view) => {
  const [key, direction] = parseSort(view.sort);
  return make("th", { scope: "col", class: column.kind, "data-key": column.key, "aria-sort": key === column.key ? direction : null },
    make("button", {
      type: "button", class: "sort", title: column.help, "data-focus": `sort-${table.id}-${column.key}`,
      onclick: () => view.change({ [view.sorting]: nextSort(column, view.sort) }),
    }, ...column.heading.split(/(?<=_)/).flatMap((part, number) => (number ? [make("wbr"), part] : [part]))));
};

// The details of a row are kept while it is open, so that what the reader opened in them stays open.
const OPENED = new Map();

const detailsOf = (row, width) => {
  if (!OPENED.has(row.id)) {
    const cells = row.details.map((at) => DATA.cells[at]);
    const shown = make("div", {}, cellDetails(cells[0]));
    OPENED.set(row.id, make("div", { class: "inner" }, cells.length > 1 ? chooser(cells, shown) : null, shown));
  }
  return make("tr", { class: "detail", id: `details-${row.id}` }, make("td", { colspan: width }, OPENED.get(row.id)));
};

const columnChooser = (table, shown, view) => {
  const keys = shown.map(({ key }) => key);
  const boxes = table.columns.filter(({ key }) => key !== "variant").map((column) => make("label", {}, make("input", {
    type: "checkbox", checked: keys.includes(column.key), "data-focus": `column-${table.id}-${column.key}`,
    onchange: () => view.change({ [view.choosing]: toggled(keys.join(","), column.key, ",") }),
  }), make("span", {}, column.heading, make("small", {}, ` ${column.help}`))));
  return make("details", { class: "chooser", open: view.open }, make("summary", { "data-focus": `columns-${table.id}` }, "Columns"),
    make("div", {}, ...boxes, make("button", { type: "button", class: "quiet", onclick: () => view.change({ [view.choosing]: "" }) }, "Default columns")));
};

const chosenColumns = (table, text, defaults) => {
  const wanted = text ? listed(text, ",") : defaults;
  const found = table.columns.filter(({ key }) => key === "variant" || wanted.includes(key));
  // Rows are recognised by the rank and the name, so these are first; other columns keep the order of the table.
  return isNarrow() ? [...found.filter(({ key }) => key === "variant"), ...found.filter(({ key }) => key !== "variant")] : found;
};

const bodyOf = (body, table, columns, view) => {
  const { state, change } = view;
  const rows = sortRows(body.rows.filter((row) => view.isShown(row)), table, view.sort);
  if (!rows.length) return null;
  const collapsible = body.kind === "modified" || body.kind === "edge";
  const open = !collapsible || state.q || rows.some(({ id }) => listed(state.open).includes(id)) || listed(state.all).includes(body.kind);
  const text = `${body.title}${collapsible ? ` (${plural(rows.length, "row")})` : ""}`;
  const heading = collapsible
    ? make("button", { type: "button", class: "fold", "aria-expanded": String(Boolean(open)), "data-focus": `fold-${body.kind}`, onclick: () => change({ all: toggled(state.all, body.kind) }) }, text)
    : make("span", {}, text);
  const limit = view.most && !listed(state.all).includes(table.id) && !state.q ? view.most : rows.length;
  const shown = open ? rows.slice(0, limit) : [];
  let last = null;
  const lines = shown.flatMap((row) => {
    const begins = view.byMachine && last !== null && row.hardware !== last;
    last = row.hardware;
    const onclick = ({ target }) => {
      if (row.details && !target.closest("button, label") && !String(getSelection())) toggleRow(row, view);
    };
    const line = make("tr", { class: `row ${row.kind}${begins ? " machine" : ""}`, "data-name": row.variant ?? row.name, onclick },
      ...columns.map((column) => (column.key === "variant" ? nameCell(row, view) : cellOf(column, row.cells[column.key], row))));
    const detail = row.details && listed(state.open).includes(row.id) ? detailsOf(row, columns.length) : null;
    return detail ? [line, detail] : [line];
  });
  if (limit < rows.length) {
    lines.push(make("tr", {}, make("td", { colspan: columns.length }, make("button", {
      type: "button", class: "fold", "aria-expanded": "false", onclick: () => change({ all: toggled(state.all, table.id) }),
    }, `Show all ${rows.length} systems`))));
  }
  return make("tbody", { class: body.kind }, body.title ? make("tr", { class: "heading" }, make("th", { scope: "rowgroup", colspan: columns.length }, heading)) : null, ...lines);
};

// view: state, change, sort (its text), sorting and choosing (names in the state), defaults (keys), isShown, and options.
const buildTable = (table, view) => {
  const columns = chosenColumns(table, view.choosing ? view.state[view.choosing] : "", view.defaults);
  const [key] = parseSort(view.sort);
  const byMachine = table.columns.some((column) => column.key === key && column.machine);
  const bodies = table.bodies.map((body) => bodyOf(body, table, columns, { ...view, byMachine })).filter(Boolean);
  return [
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${table.title || "all tasks"}: table, scrolls horizontally` },
      make("table", { id: `table-${table.id}` }, make("thead", {}, make("tr", {}, ...columns.map((column) => headOf(column, table, view)))), ...bodies)),
    bodies.length ? null : make("p", { class: "nothing" }, "No row matches the budget and the search."),
    byMachine && view.several ? make("p", { class: "remark machines" }, "Speed and memory are sorted separately for each hardware.") : null,
    view.choosing ? columnChooser(table, columns, view) : null,
  ];
};
