// The view is determined by one state, which is stored in the fragment of the URL, so that views can be linked.
// Budgets have the names of their costs; lists of ids and of columns are separated by dots and commas.
const UNITS = { flops: "TFLOP", seconds: "s", parameters: "parameters", state: "kB", milliseconds: "ms", step: "times the Transformer's" };
const COSTS = Object.keys(UNITS);
const LIMITS = { flops: "Training TFLOP ≤", seconds: "Training seconds ≤", parameters: "Parameters ≤", state: "State kB ≤", milliseconds: "Inference ms ≤" };

const INITIAL = {
  protocol: DATA.protocols[0]?.id ?? "", task: "", hardware: "", cost: "", q: "", sort: "", order: "", open: "", pair: "",
  columns: "", more: "", all: "", ...Object.fromEntries(Object.keys(LIMITS).map((name) => [name, ""])),
};

const readState = () => {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(Object.entries(INITIAL).map(([name, value]) => [name, given.get(name) ?? value]));
};

const writeState = (state) => {
  const changed = new URLSearchParams(Object.entries(state).filter(([name, value]) => value !== INITIAL[name]));
  const hash = String(changed);
  if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? `#${hash}` : location.pathname);
};

const listed = (text, separator = ".") => text.split(separator).filter(Boolean);

const toggled = (text, entry, separator = ".") => {
  const entries = new Set(listed(text, separator));
  if (!entries.delete(entry)) entries.add(entry);
  return [...entries].join(separator);
};

const protocolOf = (state) => DATA.protocols.find(({ id }) => id === state.protocol) ?? DATA.protocols[0];

// By default the first task with an answer.
const taskOf = (state) => {
  const { tasks } = protocolOf(state);
  return tasks.find(({ title }) => title === state.task) ?? tasks.find((task) => rankedRows(task, INITIAL).some(canWin)) ?? tasks[0];
};
