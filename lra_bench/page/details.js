// The details of a row, which are built when it is opened.
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

const copyButton = (text, name = "Copy") => {
  const button = make("button", { type: "button", class: "quiet copy" }, name);
  const announcement = make("span", { class: "unseen", role: "status" });
  button.addEventListener("click", async () => {
    const done = await copyText(text);
    button.focus();
    button.textContent = announcement.textContent = done ? "Copied" : "Copying failed: select the text";
    setTimeout(() => {
      button.textContent = name;
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
  return make("article", { class: "cell" },
    make("h4", {}, cell.task, make("small", {}, ` ${cell.place}`)),
    make("div", { class: "command" }, make("pre", { tabindex: 0 }, make("code", {}, cell.command)), ...copyButton(cell.command, "Copy command")),
    seedTable(cell.seeds),
    make("div", { class: "pictures" }, ...cell.charts.map((chart) => drawChart(chart, cell.look))),
    !cell.bibtex ? null : make("details", { class: "config bibtex" }, make("summary", {}, "BibTeX"),
      make("div", { class: "command" }, make("pre", { tabindex: 0 }, make("code", {}, cell.bibtex)), ...copyButton(cell.bibtex, "Copy BibTeX"))),
    make("div", { class: "columns" }, ...cell.facts.map(factList)),
    make("details", { class: "config" }, make("summary", {}, "Configuration"),
      make("div", { class: "command" }, make("pre", { tabindex: 0 }, make("code", {}, cell.config)), ...copyButton(cell.config, "Copy configuration"))));
};

const chooser = (cells, shown) => {
  const buttons = cells.map((cell, number) => make("button", { type: "button", "aria-pressed": String(number === 0) }, cell.task));
  buttons.forEach((button, number) => button.addEventListener("click", () => {
    buttons.forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
    shown.replaceChildren(cellDetails(cells[number]));
  }));
  return make("div", { class: "tasks", role: "group", "aria-label": "Task" }, ...buttons);
};
