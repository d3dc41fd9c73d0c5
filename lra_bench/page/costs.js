// Costs of rows and the budget. A row whose cost is unknown is not known to be within a budget.
const costOf = (row, name) => row.cells[name]?.value ?? null;

const costColumn = (task, name) => task.columns.find(({ key }) => key === name);

// Unless a machine is chosen, a row that combines several machines replaces their rows, which are its parts.
const onMachine = (row, state) => (state.hardware ? row.hardware === undefined || row.hardware === state.hardware : !row.part);

const rankedRows = (task, state) =>
  (task.bodies.find(({ kind }) => kind === "ranked")?.rows ?? []).filter((row) => onMachine(row, state));

// Time is comparable on one machine only.
const isComparable = (task, name, state) => {
  const known = rankedRows(task, state).filter((row) => costOf(row, name) !== null);
  return known.length > 0 && (!costColumn(task, name).machine || new Set(known.map(({ hardware }) => hardware)).size === 1);
};

const comparableCosts = (task, state) => COSTS.filter((name) => isComparable(task, name, state));

// By default the first cost that most rows have.
const chosenCost = (task, state) => {
  const names = comparableCosts(task, state);
  const share = (name) => rankedRows(task, state).filter((row) => costOf(row, name) !== null).length / rankedRows(task, state).length;
  return names.includes(state.cost) ? state.cost : (names.find((name) => share(name) > 0.7) ?? names[0] ?? "");
};

const SUFFIXES = { "": 1, k: 1e3, m: 1e6, g: 1e9, t: 1e12 };

// Returns null for an empty text and NaN for one that is no number: 50, 50k, 1.5e3, 2,000.
const parseLimit = (text) => {
  const plain = text.replaceAll(/[,\s]/g, "").toLowerCase();
  if (!plain) return null;
  const found = plain.match(/^(\d+\.?\d*|\.\d+)(e[+-]?\d+)?([kmgt]?)$/);
  return found ? Number(found[1] + (found[2] ?? "")) * SUFFIXES[found[3]] : NaN;
};

const limitsOf = (task, state) =>
  comparableCosts(task, state).filter((name) => name in LIMITS).map((name) => [name, parseLimit(state[name])]).filter(([, most]) => most !== null && !Number.isNaN(most));

const fits = (row, limits) => limits.every(([name, most]) => costOf(row, name) !== null && costOf(row, name) <= most);

const formatCost = (row, name) => `${row.cells[name].text} ${UNITS[name]}`;
