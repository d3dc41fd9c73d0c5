// The details of a row are built when it is opened, from the JSON data at the end of the page.
const DATA = JSON.parse(document.getElementById("data").textContent);

const copyText = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers that block the clipboard API for local files still copy a selection.
    const area = make("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
};

const copyButton = (text) => {
  const button = make("button", { type: "button", class: "quiet copy" }, "Copy");
  const announcement = make("span", { class: "unseen", role: "status" });
  button.addEventListener("click", async () => {
    const done = await copyText(text);
    button.focus();
    button.textContent = announcement.textContent = done ? "Copied" : "Copying failed: select the text";
    setTimeout(() => {
      button.textContent = "Copy";
      announcement.textContent = "";
    }, 2000);
  });
  return [button, announcement];
};

const SEED_COLUMNS = { seed: "seed", status: "status", score: "score", interval: "95 % CI over examples", wall: "duration", attempt: "attempt", finished: "finished (UTC)", reason: "reason" };

const seedTable = (seeds) => {
  const names = Object.keys(SEED_COLUMNS).filter((name) => seeds.some((seed) => seed[name] !== ""));
  const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, SEED_COLUMNS[name])));
  const rows = seeds.map((seed) => make("tr", { class: seed.status === "ok" ? null : "ended" }, ...names.map((name) => make("td", {}, String(seed[name])))));
  return make("div", { class: "scroll", tabindex: 0 }, make("table", { class: "seeds" }, make("thead", {}, head), make("tbody", {}, ...rows)));
};

const factList = ([title, facts]) => {
  const lines = facts.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text)));
  const isBrief = facts.length <= 8 && !matchMedia("(max-width: 45rem)").matches;
  return make("details", { class: "facts", open: isBrief ? "" : null }, make("summary", {}, title), make("dl", {}, ...lines));
};

const cellDetails = (cell) => {
  const config = cell.config.map((at) => DATA.pool[at]).join("");
  return make("article", { class: "cell" },
    make("h4", {}, cell.task, make("small", {}, ` ${cell.place}`)),
    make("div", { class: "command" }, make("pre", { tabindex: 0 }, make("code", {}, cell.command)), ...copyButton(cell.command)),
    seedTable(cell.seeds),
    make("div", { class: "pictures" }, ...cell.charts.map((chart) => drawChart(chart, cell.look))),
    make("div", { class: "columns" }, ...cell.facts.map((at) => factList(DATA.pool[at]))),
    make("details", { class: "config" }, make("summary", {}, "Configuration"),
      make("div", { class: "command" }, make("pre", { tabindex: 0 }, make("code", {}, config)), ...copyButton(config))));
};

const chooser = (cells, shown) => {
  const buttons = cells.map((cell, number) => make("button", { type: "button", "aria-pressed": String(number === 0) }, cell.task));
  buttons.forEach((button, number) => button.addEventListener("click", () => {
    buttons.forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
    shown.replaceChildren(cellDetails(cells[number]));
  }));
  return make("div", { class: "tasks", role: "group", "aria-label": "Task" }, ...buttons);
};

const detailRow = (row, id) => {
  const cells = row.dataset.details.split(" ").map((at) => DATA.cells[Number(at)]);
  const shown = make("div", {}, cellDetails(cells[0]));
  const inner = make("div", { class: "inner" }, cells.length > 1 ? chooser(cells, shown) : null, shown);
  return make("tr", { class: "detail", id }, make("td", { colspan: row.cells.length }, inner));
};

const setOpen = (row, open) => {
  const button = row.querySelector("button.open");
  const id = `details-${row.dataset.id}`;
  const present = row.nextElementSibling?.matches("tr.detail") ? row.nextElementSibling : null;
  if (open && !present) {
    const detail = detailRow(row, id);
    detail.hidden = row.hidden;
    row.after(detail);
  }
  if (!open && present) present.remove();
  button.setAttribute("aria-expanded", String(open));
  if (open) button.setAttribute("aria-controls", id);
  else button.removeAttribute("aria-controls");
  row.classList.toggle("opened", open);
};

const isOpen = (row) => row.querySelector("button.open").getAttribute("aria-expanded") === "true";
