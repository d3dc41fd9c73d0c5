// Rows are sorted within their tbody by unrounded values; missing values are last in both directions.
const columnOf = (table, key) => all("thead th", table).find((head) => head.dataset.key === key);

const valueOf = (row, place, kind) => {
  const value = row.cells[place].dataset.value;
  if (value === undefined) return null;
  return kind === "number" ? Number(value) : value;
};

const compare = (one, other, kind, sign) => {
  if (one === null || other === null) return (one === null) - (other === null);
  return sign * (kind === "number" ? one - other : one.localeCompare(other, "en", { numeric: true }));
};

const rowsOf = (body) => all(":scope > tr.row", body);

const place = (body, rows) => {
  for (const row of rows) {
    const detail = row.nextElementSibling?.matches("tr.detail") ? row.nextElementSibling : null;
    body.append(...(detail ? [row, detail] : [row]));
  }
};

// Speed and memory are not comparable across machines: rows are grouped by hardware and sorted within each group.
const sortBody = (body, head, direction) => {
  const rows = rowsOf(body);
  const { kind } = head.dataset;
  const byMachine = "machine" in head.dataset;
  const sign = direction === "ascending" ? 1 : -1;
  const index = [...head.parentNode.cells].indexOf(head);
  const keyed = rows.map((row) => ({ row, value: valueOf(row, index, kind), at: Number(row.dataset.place) }));
  keyed.sort((one, other) => {
    const machines = byMachine ? (one.row.dataset.hardware ?? "").localeCompare(other.row.dataset.hardware ?? "") : 0;
    return machines || compare(one.value, other.value, kind, sign) || one.at - other.at;
  });
  place(body, keyed.map(({ row }) => row));
};

const unsort = (body) =>
  place(body, rowsOf(body).sort((one, other) => Number(one.dataset.place) - Number(other.dataset.place)));

const markMachines = (table, byMachine) => {
  let several = false;
  for (const body of table.tBodies) {
    let last = null;
    for (const row of rowsOf(body)) {
      const begins = byMachine && !row.hidden && last !== null && row.dataset.hardware !== last;
      row.classList.toggle("machine", begins);
      several ||= begins;
      if (!row.hidden) last = row.dataset.hardware;
    }
  }
  table.closest(".board").querySelector(".machines").hidden = !several;
};

const sortTable = (table, key, direction) => {
  const head = key ? columnOf(table, key) : null;
  for (const each of all("thead th", table)) {
    if (each === head) each.setAttribute("aria-sort", direction);
    else each.removeAttribute("aria-sort");
  }
  for (const body of table.tBodies) {
    if (head) sortBody(body, head, direction);
    else unsort(body);
  }
  markMachines(table, Boolean(head && "machine" in head.dataset));
};

// The first click sorts best first, the second in the opposite direction, the third restores the ranking.
const nextSort = (head, key, direction) => {
  const { first } = head.dataset;
  if (key !== head.dataset.key) return [head.dataset.key, first];
  if (direction === first) return [key, first === "ascending" ? "descending" : "ascending"];
  return ["", ""];
};
