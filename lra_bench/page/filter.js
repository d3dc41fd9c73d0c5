// The view is determined by one state, which is stored in the fragment of the URL, so that views can be linked.
const INITIAL = { track: document.querySelector("select[name=track]").value, task: "", hardware: "", family: "", q: "", sort: "", open: "" };

const readState = () => {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(Object.entries(INITIAL).map(([name, value]) => [name, given.get(name) ?? value]));
};

const writeState = (state) => {
  const changed = new URLSearchParams(Object.entries(state).filter(([name, value]) => value !== INITIAL[name]));
  const hash = String(changed);
  if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? `#${hash}` : location.pathname);
};

// Floors and published rows have no hardware. Floors have no family and remain visible for comparison.
const matches = (row, state, words) => {
  const { name, family, hardware } = row.dataset;
  const published = row.classList.contains("published");
  if (state.hardware && hardware !== undefined && hardware !== state.hardware) return false;
  if (state.family && (published || family !== undefined) && family !== state.family) return false;
  const lowerCaseName = name.toLowerCase();
  return words.every((word) => lowerCaseName.includes(word));
};

const filterBoard = (board, state, words) => {
  const elsewhere = Boolean(board.closest(".elsewhere"));
  const chosen = state.track === board.dataset.track;
  const isShown = elsewhere ? !state.task || chosen : board.dataset.task === state.task;
  board.hidden = !isShown;
  let shown = 0;
  for (const body of all("tbody", board)) {
    let inBody = 0;
    for (const row of rowsOf(body)) {
      row.hidden = !matches(row, state, words);
      const detail = row.nextElementSibling;
      if (detail?.matches("tr.detail")) detail.hidden = row.hidden;
      if (!row.hidden) inBody += 1;
    }
    const heading = body.querySelector("tr.heading");
    if (heading) heading.hidden = inBody === 0;
    shown += inBody;
  }
  board.querySelector(".nothing").hidden = shown > 0;
  if (elsewhere && shown === 0) board.hidden = true;
  const source = board.querySelector("details.source");
  if (source && words.length && shown) source.open = true;
  return isShown && (!elsewhere || chosen) ? shown : 0;
};

const filterTracks = (state) => {
  const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const track of all("section.track")) {
    const inTrack = state.track === "all" || track.dataset.track === state.track;
    let boards = 0;
    for (const board of all(".board", track)) {
      const rows = filterBoard(board, state, words);
      if (!board.hidden) boards += 1;
      if (inTrack) shown += rows;
    }
    track.hidden = !inTrack || boards === 0;
  }
  return shown;
};
