// Tables: sorting, hiding the rows of runs that are not selected, and the differences between configurations.
const MOST_COMPARED = 12; // columns of the table of differences

/** The number in a cell; "–" (never reached or not measured) sorts above all numbers. */
function number(text) {
  const value = parseFloat(text.replace(/[,≈ ]/g, ""));
  return isNaN(value) ? Infinity : value;
}

/** Sort by a column on a click on its heading, in the other direction on the next click. */
function sortable(table) {
  const heads = [...table.querySelectorAll("th")], body = table.tBodies[0];
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const text = row => row.cells[column].textContent.trim();
    const words = [...body.rows].every(row => !isFinite(number(text(row))));
    const order = (a, b) => words ? natural(text(a), text(b)) : number(text(a)) - number(text(b)) || 0;
    const sorted = [...body.rows].sort(order);
    body.append(...(down ? sorted.reverse() : sorted));
  }));
}

/** Show the rows and the configurations of the selected runs. */
function followTables() {
  const shown = RUNS.map(isShown);
  document.querySelectorAll("[data-run]").forEach(element => {
    const hide = !shown[element.dataset.run];
    if (element.hidden !== hide) element.hidden = hide;
  });
  const looks = RUNS.map((_, number) => colour(number)).join();
  if (followTables.looks !== looks) document.querySelectorAll("tr[data-run] .run i").forEach(box => {
    box.innerHTML = sample(lineOf(Number(box.closest("tr").dataset.run)));
  });
  followTables.looks = looks;
  followMarks();
  showDifferences(document.getElementById("differences"));
}

/** The settings in which the selected runs differ, one column for each run. */
function showDifferences(box) {
  const all = shownRuns(), runs = all.slice(0, MOST_COMPARED), found = differing(runs), cell = (tag, text) => {
    const made = document.createElement(tag);
    made.textContent = text;
    return made;
  };
  const row = (tag, texts) => { const made = document.createElement("tr"); made.append(...texts.map((text, n) => cell(n ? tag : "th", text))); return made; };
  const text = (run, key) => String(run.settings[key] ?? "–"), table = box.querySelector("table");
  const keys = Object.keys(found).filter(key => new Set(runs.map(run => text(run, key))).size > 1); // a run may lack a setting that another has off
  box.hidden = !keys.length;
  table.tHead.replaceChildren(row("th", ["setting", ...runs.map(run => run.label)]));
  table.tBodies[0].replaceChildren(...keys.map(key => row("td", [key.replaceAll("_", " "), ...runs.map(run => text(run, key))])));
  box.querySelector("output").textContent = all.length > runs.length ? ` The first ${runs.length} of ${all.length} selected runs.` : "";
}
