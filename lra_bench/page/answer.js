// The answer: the best row within the budget, and the cheapest and the leanest of those not shown to be worse.
// Only rows with enough seeds, each better than the strongest floor, can be named as best.
const canWin = (row) => row.clears && row.seeds >= DATA.minSeeds;

const sign = (task) => (task.metric === "bits_per_character" ? -1 : 1);

const byScore = (task) => (one, other) => sign(task) * (other.score - one.score);

// Whether the second row is not shown to be worse than the first, null if they were not compared.
const areTied = (one, other) => {
  const [place] = other.details;
  if (Math.min(one.seeds, other.seeds) < DATA.minSeeds) return null;
  return one.ties.includes(place) ? true : one.beats.includes(place) ? false : null;
};

const everySeed = (...rows) => (rows.some(({ seeds }) => seeds < DATA.claimSeeds) ? " in every seed" : "");

// Of the overall best row, the tables mark those that are not shown to be worse.
const peersOf = (task, best, able) => {
  const top = rankedRows(task, INITIAL).filter(canWin).sort(byScore(task))[0];
  return able.filter((row) => row === best || (areTied(best, row) && (row.best || best !== top)));
};

// The row with the lowest cost, null if the cost of any row is unknown.
const lowest = (rows, name) =>
  (rows.every((row) => costOf(row, name) !== null) ? rows.reduce((least, row) => (costOf(least, name) <= costOf(row, name) ? least : row)) : null);

const scoreText = (row, task) => {
  const { text, spread, tail, at_floor: below } = row.cells.score;
  const unit = task.metric === "bits_per_character" ? "bits" : "%";
  return [text.includes("learned") ? text : `${text} ${unit}`, spread, tail, below ? "°" : ""].filter(Boolean).join(" ");
};

const isMixed = (board) => {
  const rows = board.tasks.flatMap(({ bodies }) => bodies.flatMap((body) => body.rows)).filter(({ kind }) => kind === "measured");
  return rows.some(({ own }) => own) && rows.some(({ own }) => !own);
};

const ownMark = () => make("span", { class: "own", title: "yours: not of a reference board" }, "◆");

const pick = (title, row, text, mixed) => make("div", {}, make("dt", {}, title),
  make("dd", {}, dot(row.look), make("b", {}, row.name), mixed && row.own ? ownMark() : null, " ", make("span", {}, text)));

const findAnswer = (task, state) => {
  const ranked = rankedRows(task, state).filter(({ score }) => score !== null).sort(byScore(task));
  const limits = limitsOf(task, state);
  const within = ranked.filter((row) => fits(row, limits));
  const able = within.filter(canWin);
  const unknown = limits.map(([name]) => [name, ranked.filter((row) => costOf(row, name) === null).length]).filter(([, count]) => count);
  const peers = able.length ? peersOf(task, able[0], able) : [];
  return { ranked, limits, within, able, peers, unknown };
};

const noteOf = (task, { limits, within, able, peers }) => {
  const budget = limits.length ? " within the budget" : "";
  if (!within.length) return `No measured system is${budget || " ranked"}.`;
  const few = within.filter((row) => row.clears && row.seeds < DATA.minSeeds);
  if (!able.length && few.length) {
    const names = few.map((row) => row.name).sort((one, other) => one.localeCompare(other, "en")).slice(0, 6);
    const more = few.length > 6 ? ` and ${few.length - 6} more` : "";
    return `No claim yet: fewer than ${DATA.minSeeds} seeds. Above the floor${budget} so far, by name: ${names.join(", ")}${more}.`;
  }
  if (!able.length) return `No system${budget} is shown to exceed the floor in every seed.`;
  const others = able.slice(1);
  if (!others.length) return `No other system${budget} has ${DATA.minSeeds} seeds above the floor.`;
  const compared = others.filter((row) => areTied(able[0], row) !== null);
  const what = `${plural(compared.length, "other system")} above the floor${budget}`;
  const rest = compared.length < others.length ? ` ${plural(others.length - compared.length, "further system")} not compared with it.` : "";
  if (!compared.length) return rest.trim();
  return (peers.length > 1 ? `Not shown to be better than ${peers.length - 1} of ${what}.` : `Better${everySeed(able[0], ...compared)} than ${what}.`) + rest;
};

const showAnswer = (task, state) => {
  const answer = findAnswer(task, state);
  const { ranked, limits, able, peers, unknown } = answer;
  const mixed = isMixed(protocolOf(state));
  const picks = [];
  if (able.length) {
    picks.push(pick(limits.length ? "best within the budget" : "best score", able[0], scoreText(able[0], task), mixed));
    const among = `of ${peers.length} ties`;
    const cost = chosenCost(task, state);
    const lean = comparableCosts(task, state).includes("state") && lowest(peers, "state") ? "state" : "parameters";
    const cheapest = lowest(peers, cost);
    const leanest = lowest(peers, lean);
    if (peers.length > 1 && cheapest && cost !== lean) picks.push(pick(`cheapest ${among}`, cheapest, formatCost(cheapest, cost), mixed));
    if (peers.length > 1 && leanest) picks.push(pick(`leanest ${among}`, leanest, formatCost(leanest, lean), mixed));
  }
  const own = mixed ? ranked.find((row) => row.own) : null;
  if (own && own !== able[0]) {
    const outside = fits(own, limits) ? "" : ", outside the budget";
    picks.push(pick("yours", own, scoreText(own, task) + outside, mixed));
  }
  const floor = task.floor ? `floor ${task.floor.text}${task.floor.name ? `, ${task.floor.name}` : ""}` : "";
  const left = unknown.map(([name, count]) => `${plural(count, "system")} without ${costColumn(task, name).heading} left out.`);
  byId("answer").replaceChildren(
    make("h2", {}, task.title, make("small", {}, [floor, ...task.missing].filter(Boolean).join(" · "))),
    make("dl", {}, ...picks),
    make("p", { class: "remark" }, [noteOf(task, answer), ...left].join(" ")),
  );
};
