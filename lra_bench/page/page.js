let state = readState();

const MARKS = [
  ["bold", "best, or not shown to be worse"], ["°", "not shown to exceed the floor"], ["(1)", "one seed; fewer than three are not ranked"],
  ["±", "95 % interval"], ["◆", "yours"],
];

const option = (value, text, selected) => make("option", { value, selected: value === selected }, text);

const field = (name, label, element) => make("label", { class: name }, make("span", {}, label), element);

const buildControls = (form) => {
  const select = (name) => make("select", { name });
  const latest = DATA.protocols.filter(({ earlier }) => !earlier);
  const earlier = DATA.protocols.filter((each) => each.earlier);
  const protocol = select("protocol");
  protocol.append(...latest.map(({ id }) => option(id, id)));
  if (earlier.length) protocol.append(make("optgroup", { label: "Earlier versions" }, ...earlier.map(({ id }) => option(id, id))));
  form.append(
    field("task", "Task", select("task")),
    DATA.protocols.length > 1 ? field("protocol", "Protocol", protocol) : "",
    field("hardware", "Hardware", select("hardware")),
    ...Object.keys(LIMITS).map((name) => field("limit", "", make("input", { name, inputmode: "decimal", autocomplete: "off", spellcheck: "false" }))),
    make("button", { type: "reset", class: "quiet" }, "Reset"),
  );
};

// Elements keep their focus and the position of the cursor, so only values that changed are set.
const showControls = (form) => {
  const board = protocolOf(state);
  const task = taskOf(state);
  const { task: tasks, protocol, hardware } = form.elements;
  tasks.replaceChildren(...board.tasks.map(({ title }) => option(title, title, task.title)));
  if (protocol) protocol.value = board.id;
  hardware.replaceChildren(option("", "any", state.hardware), ...board.machines.map((name) => option(name, name, state.hardware)));
  hardware.closest("label").hidden = board.machines.length < 2;
  const usable = comparableCosts(task, state);
  for (const name of Object.keys(LIMITS)) {
    const input = form.elements[name];
    const column = costColumn(task, name);
    const known = column ? rankedRows(task, state).map((row) => costOf(row, name)).filter((value) => value !== null) : [];
    input.previousElementSibling.textContent = LIMITS[name];
    input.disabled = !usable.includes(name);
    input.placeholder = input.disabled ? (known.length ? "choose hardware" : "not measured") : `${short(Math.min(...known))} to ${short(Math.max(...known))}`;
    if (input.value.trim() !== state[name]) input.value = state[name];
    const wrong = Number.isNaN(parseLimit(state[name]));
    input.setAttribute("aria-invalid", String(wrong));
    input.setCustomValidity(wrong ? "a number such as 50 or 50k" : "");
    input.title = wrong ? "a number such as 50 or 50k" : "largest value; empty: any";
  }
};

const marks = () => make("p", { class: "marks" }, ...MARKS.map(([mark, meaning]) => make("span", {}, make("b", {}, mark), ` ${meaning}`)));

const machineText = ({ hardware, several }) => `${hardware}${several ? " unless a row names another" : ""}`;

const showSystems = (board) => {
  const { systems } = board;
  const tasks = systems.columns.filter((column) => column.task).map(({ key }) => key);
  const view = {
    state, change, sort: state.order, sorting: "order", choosing: "more", defaults: tasks, most: 15, mixed: isMixed(board),
    hardware: mainMachine(systems, state), several: board.machines.length > 1 && !state.hardware, open: byId("systems").querySelector("details.chooser")?.open,
    isShown: (row) => onMachine(row, state) && matches(row, state),
  };
  byId("systems").replaceChildren(
    make("h2", {}, "Systems and tasks"),
    make("p", { class: "remark" }, `Protocol ${board.id} · ${machineText(view)} · skill in %: 0 is the strongest floor, 100 a perfect score; italic: fewer than ${DATA.minSeeds} seeds; blank: not measured`),
    ...buildTable(systems, view).filter(Boolean));
};

const showTask = (board, task) => {
  const cost = chosenCost(task, state);
  const size = task.columns.some(({ key }) => key === "state") ? "state" : "parameters";
  const limits = limitsOf(task, state);
  const rows = rankedRows(task, state);
  const within = rows.filter((row) => fits(row, limits));
  const search = byId("task").querySelector("input[type=search]") ?? make("input", {
    type: "search", name: "q", placeholder: "system or family", autocomplete: "off", spellcheck: "false", "data-focus": "search",
    oninput: (event) => change({ q: event.target.value.trim() }),
  });
  if (search.value.trim() !== state.q) search.value = state.q;
  const view = {
    state, change, sort: state.sort, sorting: "sort", choosing: "columns", mixed: isMixed(board), ticks: true,
    defaults: isNarrow() ? ["score"] : ["rank", "score", cost, cost === size ? "parameters" : size],
    hardware: mainMachine(task, state), several: board.machines.length > 1 && !state.hardware, open: byId("task").querySelector("details.chooser")?.open,
    isShown: (row) => onMachine(row, state) && matches(row, state) && (row.kind === "floor" || fits(row, limits)),
  };
  const shown = within.filter((row) => matches(row, state)).length;
  const count = `${plural(shown, "row")} shown${shown < rows.length ? ` of ${rows.length}` : ""}`;
  byId("task").replaceChildren(
    make("h2", {}, task.title),
    make("p", { class: "remark" }, [`Protocol ${board.id}`, view.several && machineText(view), task.metric === "bits_per_character" ? "bits per character" : "accuracy in %"].filter(Boolean).join(" · ")),
    make("div", { class: "tools" }, field("search", "Search", search), make("output", { role: "status" }, count)),
    marks(), ...buildTable(task, view).filter(Boolean),
    ...task.remarks.map((remark) => make("p", { class: "remark" }, remark)));
};

const buildPublished = () => {
  const place = byId("published");
  place.hidden = !DATA.published.length;
  place.addEventListener("toggle", () => {
    if (place.querySelector("details")) return;
    for (const table of DATA.published) {
      const rows = table.bodies.flatMap((body) => body.rows).length;
      const source = make("details", { class: "source" }, make("summary", {}, table.title, make("small", {}, ` ${plural(rows, "row")}`)));
      const show = (sort) => {
        const view = { state: { open: "", all: "", q: "" }, change: (changes) => keepFocus(() => show(changes.sort)), sort, sorting: "sort", defaults: table.columns.map(({ key }) => key), isShown: () => true };
        source.replaceChildren(source.firstElementChild, ...buildTable(table, view).filter(Boolean), ...table.remarks.map((remark) => make("p", { class: "remark" }, remark)));
      };
      source.addEventListener("toggle", () => source.open && show(""), { once: true });
      place.append(source);
    }
  });
};

const show = () => {
  const form = document.querySelector("form.controls");
  if (!form) return;
  const board = protocolOf(state);
  const task = taskOf(state);
  keepFocus(() => {
    showControls(form);
    showAnswer(task, state);
    showScatter(task, state, change);
    showSystems(board);
    showTask(board, task);
    showPair(task, state, change);
  });
};

const change = (changes) => {
  state = { ...state, ...changes };
  writeState(state);
  show();
};

const setTheme = (theme) => {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
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

const THEMES = ["auto", "light", "dark"];
let theme = THEMES.includes(remembered()) ? remembered() : "auto";
setTheme(theme);
byId("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  remembered(theme);
  setTheme(theme);
});
byId("theme").hidden = false;

const controls = document.querySelector("form.controls");
if (controls) {
  buildControls(controls);
  controls.hidden = false;
  // Rows of another protocol or task have other ids and columns.
  controls.addEventListener("input", ({ target }) => {
    const kept = { open: "", pair: "", sort: "" };
    if (target.name === "protocol") change({ ...INITIAL, protocol: target.value });
    else change({ [target.name]: target.value.trim(), ...(target.name === "task" ? kept : {}) });
  });
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.addEventListener("reset", (event) => {
    event.preventDefault();
    change(INITIAL);
  });
}
window.addEventListener("hashchange", () => {
  if (["#answer"].includes(location.hash)) return;
  state = readState();
  show();
});
matchMedia("(max-width: 45rem)").addEventListener("change", show);
let width = innerWidth;
window.addEventListener("resize", () => {
  if (innerWidth !== width) showScatter(taskOf(state), state, change);
  width = innerWidth;
});
buildPublished();
show();
byId("pending").remove();
