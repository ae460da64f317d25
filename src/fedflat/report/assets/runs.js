// The list of runs: search, filter, colour by a setting, hide, isolate and pin. All figures and tables follow it.
const SEQUENCE = { light: ["#440154", "#414487", "#2a788e", "#1f9a6b", "#8a8a00"], dark: ["#b79cf7", "#6fa8f5", "#4cc9c0", "#7ed957", "#fde725"] };
const palette = () => STYLES[isDark() ? "dark" : "light"];

/** "lr=0.01 rho>1 sam": every term must hold. A term is a comparison with a setting, or a part of the name or folder. */
function matches(run, filter) {
  return filter.trim().toLowerCase().split(/\s+/).filter(Boolean).every(term => {
    const [, key, sign, wanted] = term.match(/^([\w.]+)(!=|>=|<=|=|>|<)(.*)$/) || [];
    if (!key) return `${run.label} ${run.folder}`.toLowerCase().includes(term);
    const value = run.settings[key], number = parseFloat(wanted);
    if (sign === "=" || sign === "!=") return (same(value, wanted) || same(value, number)) === (sign === "=");
    return { ">": value > number, "<": value < number, ">=": value >= number, "<=": value <= number }[sign];
  });
}
const same = (value, wanted) => value === wanted || String(value).toLowerCase() === String(wanted);

const isShown = run => view.pinned.has(run.id) || (!view.hidden.has(run.id) && run.listed);
const shownRuns = () => RUNS.filter(isShown);
/** The settings in which runs differ: {name: its distinct values in natural order}. */
function differing(runs = RUNS) {
  const keys = [...new Set(runs.flatMap(run => Object.keys(run.settings)))];
  const values = key => [...new Map(runs.map(run => [String(run.settings[key]), run.settings[key]])).values()].sort(natural);
  return Object.fromEntries(keys.map(key => [key, values(key)]).filter(([, found]) => found.length > 1));
}
const natural = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
  : String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true });

/** The colour of a run: its own, or that of its value of the setting to colour by; -1 is no run. */
function colour(number) {
  if (number < 0) return colours().ink;
  const own = palette(), values = view.group && SETTINGS[view.group];
  if (!values) return own[number % own.length];
  const place = values.findIndex(value => String(value) === String(RUNS[number].settings[view.group]));
  if (!values.every(value => typeof value === "number") || values.length < 3) return own[place % own.length];
  return between(SEQUENCE[isDark() ? "dark" : "light"], place / (values.length - 1));
}

/** The colour at a place from 0 to 1 of a sequence. */
function between(sequence, place) {
  const at = place * (sequence.length - 1), low = Math.min(Math.floor(at), sequence.length - 2);
  const part = (hex, n) => parseInt(hex.slice(1 + 2 * n, 3 + 2 * n), 16), mix = n =>
    Math.round(part(sequence[low], n) + (at - low) * (part(sequence[low + 1], n) - part(sequence[low], n)));
  return `#${[0, 1, 2].map(n => mix(n).toString(16).padStart(2, "0")).join("")}`;
}

/** A picture of a line's colour and dashes, or of its symbol. */
function sample(line) {
  const paint = colour(line.run);
  const mark = line.marks ? `<text x="13" y="8" font-size="11" text-anchor="middle" fill="${paint}">${symbol(line)[2]}</text>`
    : `<path d="M0 4H26" stroke="${paint}" stroke-width="3" stroke-dasharray="${strokes(line, 1.5)}"/>`;
  return `<svg aria-hidden="true" viewBox="0 0 26 8">${mark}</svg>`;
}
const lineOf = number => ({ run: number, dash: number, marks: false });

/** Fill the list of runs and connect its controls. */
function listRuns() {
  const box = document.getElementById("runs"), list = box.querySelector("ul");
  list.replaceChildren(...RUNS.map((run, number) => {
    const item = document.createElement("li");
    item.innerHTML = `<label><input type="checkbox">${sample(lineOf(number))}<span></span></label>`
      + `<button type="button" data-only>only</button><button type="button" data-pin>pin</button>`;
    item.querySelector("span").textContent = run.label;
    if (run.diverged) item.querySelector("label").insertAdjacentHTML("beforeend", `<b class="badge">✖ diverged</b>`);
    item.querySelector("[data-only]").setAttribute("aria-label", `show ${run.label} only`);
    item.querySelector("[data-pin]").setAttribute("aria-label", `pin ${run.label}`);
    item.title = `${run.folder}${run.diverged ? `, ${run.diverged}` : ""}`;
    return item;
  }));
  list.onclick = ({ target }) => {
    const item = target.closest("li"), run = RUNS[[...list.children].indexOf(item)];
    if (target.matches("input")) toggle([run]);
    if (target.matches("[data-only]")) select([run]);
    if (target.matches("[data-pin]")) { view.pinned.delete(run.id) || view.pinned.add(run.id); follow(); }
  };
  const search = box.querySelector("[type=search]"), group = box.querySelector("select");
  search.value = view.filter;
  search.oninput = () => { view.filter = search.value; follow(); };
  box.querySelector("[data-all]").onclick = () => select(RUNS.filter(run => run.listed));
  box.querySelector("[data-none]").onclick = () => select([]);
  box.querySelector("[data-invert]").onclick = () => select(RUNS.filter(run => run.listed && view.hidden.has(run.id)));
  group.replaceChildren(new Option("run", ""), ...Object.keys(SETTINGS).map(key => new Option(key.replaceAll("_", " "), key)));
  group.value = view.group in SETTINGS ? view.group : "";
  group.onchange = () => { view.group = group.value; follow(); };
  const mean = box.querySelector("[data-mean]");
  mean.checked = view.mean;
  mean.onchange = () => { view.mean = mean.checked; follow(); };
}

/** Show these runs of those that the filter lists, and hide the others of them. */
function select(runs) {
  RUNS.filter(run => run.listed).forEach(run => view.hidden.add(run.id));
  runs.forEach(run => view.hidden.delete(run.id));
  follow();
}
/** Hide the runs if all are shown, else show them. */
function toggle(runs) {
  const hide = runs.every(run => !view.hidden.has(run.id));
  runs.forEach(run => hide ? view.hidden.add(run.id) : view.hidden.delete(run.id));
  follow();
}

/** Bring the list up to date with the view. */
function showSelection() {
  const box = document.getElementById("runs"), items = box.querySelectorAll("li");
  RUNS.forEach((run, number) => {
    run.listed = matches(run, view.filter);
    const item = items[number], drawn = item.querySelector("svg path"), paint = colour(number), hide = !run.listed && !view.pinned.has(run.id);
    if (item.hidden !== hide) item.hidden = hide;
    item.querySelector("input").checked = isShown(run);
    item.querySelector("[data-pin]").setAttribute("aria-pressed", view.pinned.has(run.id));
    if (drawn.getAttribute("stroke") !== paint) drawn.setAttribute("stroke", paint);
  });
  box.querySelector("output").textContent = `${shownRuns().length} of ${RUNS.length}`;
  showGroups(box.querySelector(".groups"));
}

/** A button for each value of the setting to colour by, which hides or shows its runs. */
function showGroups(box) {
  const values = SETTINGS[view.group] || [];
  box.replaceChildren(...values.map(value => {
    const members = RUNS.filter(run => String(run.settings[view.group]) === String(value)), button = document.createElement("button");
    button.type = "button";
    button.innerHTML = sample({ run: RUNS.indexOf(members[0]), dash: 0, marks: false });
    button.append(`${view.group.replaceAll("_", " ")} = ${value ?? "–"}`);
    button.setAttribute("aria-pressed", members.some(isShown));
    button.onclick = () => toggle(members);
    return button;
  }));
  document.querySelector("#runs .mean").hidden = !values.length;
}
