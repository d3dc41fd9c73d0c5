// All tables are readable without this script. It adds sorting, filters, details of rows, and links to views.
const form = document.querySelector("form.controls");
const tables = all(".board > .scroll > table, .source > .scroll > table");
const opening = all("tr.row[data-details]");
let state = readState();

// The key of a column may contain a colon, the direction does not.
const sorting = () => {
  const at = state.sort.lastIndexOf(":");
  return at < 0 ? ["", ""] : [state.sort.slice(0, at), state.sort.slice(at + 1)];
};

const show = () => {
  for (const name of ["track", "task", "hardware", "family", "q"]) form.elements[name].value = state[name];
  const [key, direction] = sorting();
  const shown = filterTracks(state);
  for (const table of tables) sortTable(table, key, direction === "ascending" ? "ascending" : "descending");
  const open = new Set(state.open.split(".").filter(Boolean));
  for (const row of opening) {
    if (isOpen(row) !== open.has(row.dataset.id)) setOpen(row, open.has(row.dataset.id));
  }
  document.getElementById("shown").textContent = `${plural(shown, "row")} shown`;
};

const change = (changes) => {
  state = { ...state, ...changes };
  writeState(state);
  show();
};

const toggle = (row) => {
  const open = new Set(state.open.split(".").filter(Boolean));
  if (!open.delete(row.dataset.id)) open.add(row.dataset.id);
  change({ open: [...open].join(".") });
};

const setTheme = (theme) => {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = `Theme: ${theme}`;
};

// Some browsers block storage for local files; the choice is then lost when the page is closed.
const remembered = (theme) => {
  try {
    if (theme) localStorage.setItem("lra-bench-theme", theme);
    return localStorage.getItem("lra-bench-theme") ?? "auto";
  } catch {
    return theme ?? "auto";
  }
};

for (const body of all("tbody")) rowsOf(body).forEach((row, number) => (row.dataset.place = number));

form.addEventListener("input", () => {
  const { track, task, hardware, family, q } = form.elements;
  change({
    track: track.value, task: task.value, hardware: hardware.value, family: family.value, q: q.value.trim(),
  });
});
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", (event) => {
  event.preventDefault();
  change(INITIAL);
});
document.getElementById("tables").addEventListener("click", (event) => {
  const head = event.target.closest("th[data-key]");
  if (head) {
    const [key, direction] = nextSort(head, ...sorting());
    change({ sort: key ? `${key}:${direction}` : "" });
    return;
  }
  const row = event.target.closest("tr.row[data-details]");
  if (row && (event.target.closest("button.open") || !String(getSelection()))) toggle(row);
});
window.addEventListener("hashchange", () => {
  if (location.hash === "#tables") return;
  state = readState();
  show();
});

const theme = document.getElementById("theme");
const THEMES = ["auto", "light", "dark"];
let chosen = remembered();
setTheme(THEMES.includes(chosen) ? chosen : "auto");
theme.addEventListener("click", () => {
  chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
  remembered(chosen);
  setTheme(chosen);
});
theme.hidden = form.hidden = false;
show();
