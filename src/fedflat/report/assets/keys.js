// Figures for readers without a mouse or a screen: keys that zoom and turn, a text alternative, and the numbers as a table.
const MOST_ROWS = 500; // of the table below a figure; the CSV has all

/** One sentence about a chart: what it shows, and where each shown line ends. */
function describe(chart) {
  if (!chart.lines) return `${chart.title}. ${chosenPanels(chart).length} panels. ${chart.caption}`;
  const form = value => value === undefined || value === null ? "no value" : chart.y.form === "percent" ? `${(100 * value).toFixed(1)} %` : value.toPrecision(4);
  const lines = chosenLines(chart), ends = lines.slice(0, FEW).map(line => `${line.name} ${form(line.y.at(-1))}${line.lost ? ", diverged" : ""}`);
  return `${chart.title}: ${chart.y.label} against ${chart.x.label}, ${lines.length} lines. Last values: ${ends.join("; ")}.`;
}

/** The chart's numbers as a table below it. */
function showNumbers(chart, button) {
  const box = home(chart), old = box.querySelector(".numbers");
  button.setAttribute("aria-expanded", !old);
  if (old) return old.remove();
  const [head, ...all] = rows(chart), made = document.createElement("div"), table = document.createElement("table");
  const line = (tag, cells) => { const row = document.createElement("tr"); row.append(...cells.map(text => Object.assign(document.createElement(tag), { textContent: text }))); return row; };
  table.createTHead().append(line("th", head));
  table.createTBody().append(...all.slice(0, MOST_ROWS).map(cells => line("td", cells)));
  Object.assign(made, { className: "numbers scroll", tabIndex: 0 });
  made.append(table, all.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${all.length} rows; the CSV has all.` : "");
  box.append(made);
}

/** Arrows move and + - zoom curves, or turn surfaces; 0 shows everything again. */
function pressed(plot, event) {
  const step = { ArrowLeft: [-.1, 0], ArrowRight: [.1, 0], ArrowUp: [0, .1], ArrowDown: [0, -.1] }[event.key], size = { "+": .8, "-": 1.25 }[event.key];
  if (!step && !size && event.key !== "0") return;
  event.preventDefault();
  if (plot.layout.scene) return turn(plot, step || [0, 0], size || 1, event.key === "0");
  if (event.key === "0") return Plotly.relayout(plot, { "xaxis.autorange": true, "yaxis.autorange": true });
  const shifted = (range, by) => { const [a, b] = range.map(Number), mid = (a + b) / 2 + by * (b - a), half = (b - a) / 2 * (size || 1); return [mid - half, mid + half]; };
  const [dx, dy] = step || [0, 0], { xaxis, yaxis } = plot._fullLayout;
  Plotly.relayout(plot, { ...(dx || size ? { "xaxis.range": shifted(xaxis.range, dx) } : {}), ...(dy || size ? { "yaxis.range": shifted(yaxis.range, dy) } : {}) });
}

/** Turn the camera of a surface around the upright axis, tilt it, or come nearer. */
function turn(plot, [dx, dy], size, reset) {
  const { eye } = plot._fullLayout.scene.camera, angle = Math.atan2(eye.y, eye.x) + 3 * dx, flat = Math.hypot(eye.x, eye.y) * size;
  const moved = { x: flat * Math.cos(angle), y: flat * Math.sin(angle), z: (eye.z + 2 * dy) * size };
  Plotly.relayout(plot, { "scene.camera": reset ? structuredClone(CAMERA) : { ...structuredClone(CAMERA), eye: moved } });
}
