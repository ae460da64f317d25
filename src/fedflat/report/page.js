// What one can do with the page: sort tables, switch theme and view, smooth, hide lines, save pictures and data.
const SURFACES = 8; // a browser keeps about this many WebGL pictures alive
const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false };
const webgl = (() => { try { return !!document.createElement("canvas").getContext("webgl"); } catch { return false; } })();
const states = new Map(CHARTS.map(chart => [chart, { beta: 0, view: webgl ? "3d" : "contours", hidden: new Set() }]));
const home = chart => document.getElementById(chart.key);
const colours = () => ({ ink: css("--ink"), soft: css("--soft"), paper: css("--paper"), line: css("--line"), panel: css("--panel"), low: css("--heat-low"), high: css("--heat-high") });

function panels(chart) {
  const state = states.get(chart), theme = colours();
  if (chart.lines) return curves(chart, state, theme);
  if (!chart.relief) return heat(chart, state, theme);
  return chart.grids.map((grid, n) => (state.view === "3d" && n < SURFACES ? surface : contours)(chart, grid, theme));
}

function draw(chart) {
  const printing = document.documentElement.classList.contains("printing");
  const plots = [...home(chart).querySelectorAll(".plot")];
  panels(chart).forEach((panel, n) => {
    if (plots[n].data && plots[n].data[0].type !== panel.data[0].type) Plotly.purge(plots[n]);
    const size = printing ? { width: plots[n].clientWidth, height: plots[n].clientHeight } : {}; // paper does not wait for a resize
    Plotly.react(plots[n], panel.data, { ...panel.layout, ...size }, CONFIG);
  });
}

/** Surfaces turn together. */
function link(chart) {
  const plots = [...home(chart).querySelectorAll(".plot")];
  plots.forEach(plot => plot.on("plotly_relayout", change => {
    const camera = change["scene.camera"];
    if (camera) plots.filter(other => other !== plot && other.layout.scene).forEach(other => Plotly.relayout(other, { "scene.camera.eye": camera.eye, "scene.camera.up": camera.up, "scene.camera.center": camera.center }));
  }));
}

function legend(chart) {
  const box = home(chart).querySelector(".legend"), { hidden } = states.get(chart);
  const dashes = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "12 4" };
  chart.lines.forEach((line, n) => {
    const button = box.appendChild(document.createElement("button"));
    const mark = line.marks ? `<circle cx="13" cy="4" r="4" fill="${colour(line.colour)}"/>` : `<path d="M0 4H26" stroke="${colour(line.colour)}" stroke-width="3" stroke-dasharray="${dashes[DASHES[line.dash % DASHES.length]]}"/>`;
    button.innerHTML = `<svg aria-hidden="true" viewBox="0 0 26 8">${mark}</svg>`;
    button.append(line.name);
    button.setAttribute("aria-pressed", true);
    button.addEventListener("click", () => {
      hidden.delete(n) || hidden.add(n);
      button.setAttribute("aria-pressed", !hidden.has(n));
      draw(chart);
    });
  });
}

/** The shared scale of landscapes, and the switch between their views. */
function views(chart) {
  const box = home(chart), state = states.get(chart), short = value => value.toPrecision(3);
  box.querySelector(".legend").outerHTML = `<div class="scale">${chart.z.label} ${short(chart.low)}<i style="background:linear-gradient(90deg,${VIRIDIS})"></i>${short(chart.high)}</div>`;
  const buttons = [...box.querySelectorAll("[data-view]")];
  const show = view => {
    state.view = view;
    buttons.forEach(button => button.setAttribute("aria-pressed", button.dataset.view === view));
    draw(chart);
    link(chart);
  };
  buttons.forEach(button => button.addEventListener("click", () => show(button.dataset.view)));
  if (!webgl) {
    buttons[0].disabled = true;
    box.querySelector("figcaption").insertAdjacentHTML("beforeend", '<p class="warning">This browser has no WebGL, which surfaces need: contours are shown.</p>');
  }
  show(state.view);
}

function save(name, href) {
  const link = Object.assign(document.createElement("a"), { href, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

/** All numbers of a chart as rows, the first of which names the columns. */
function rows(chart) {
  if (chart.lines) return [["name", chart.x.label, chart.y.label, "low", "high"],
    ...chart.lines.flatMap(l => l.x.map((x, i) => [l.name, x, l.y[i], l.low[i] ?? "", l.high[i] ?? ""]))];
  return [["name", chart.x.label, chart.y.label, chart.z.label],
    ...chart.grids.flatMap(g => g.y.flatMap((y, i) => g.x.map((x, j) => [g.name, x, y, g.z[i][j] ?? ""])))];
}

function saveData(chart) {
  const quoted = cell => /[",\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : cell;
  const text = rows(chart).map(row => row.map(quoted).join(",")).join("\n") + "\n";
  save(`${chart.key}.csv`, URL.createObjectURL(new Blob([text], { type: "text/csv" })));
}

/** One picture of all panels at twice the size of the screen, with their names and a legend. */
async function savePicture(chart) {
  const theme = colours(), drawn = panels(chart), wide = drawn.length > 1 ? 420 : 760, high = drawn.length > 1 ? 360 : 460, title = chart.grids ? 26 : 0;
  const columns = Math.min(drawn.length, 3), canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
  Object.assign(canvas, { width: 2 * columns * wide, height: 2 * Math.ceil(drawn.length / columns) * (high + title) });
  pen.fillStyle = theme.paper; pen.fillRect(0, 0, canvas.width, canvas.height);
  Object.assign(pen, { fillStyle: theme.ink, font: "600 28px system-ui, sans-serif", textAlign: "center" });
  for (const [n, { data, layout }] of drawn.entries()) {
    const left = 2 * wide * (n % columns), top = 2 * (high + title) * Math.floor(n / columns), image = new Image();
    const plain = { ...layout, showlegend: !!chart.lines, legend: { orientation: "h", y: 1.02, yanchor: "bottom" } };
    const plot = home(chart).querySelectorAll(".plot")[n];
    if (plain.scene && plot.layout.scene) plain.scene = { ...plain.scene, camera: plot.layout.scene.camera };
    image.src = await Plotly.toImage({ data, layout: plain }, { format: "png", width: wide, height: high, scale: 2 });
    await image.decode();
    if (title) pen.fillText(chart.grids[n].name, left + wide, top + 36);
    pen.drawImage(image, left, top + 2 * title);
  }
  save(`${chart.key}.png`, canvas.toDataURL("image/png"));
}

// "–" stands for what was never reached or measured: more than any number.
function number(text) { const value = parseFloat(text.replace(/,/g, "")); return isNaN(value) ? Infinity : value; }

function sortable(table) {
  const heads = [...table.querySelectorAll("th")], body = table.tBodies[0];
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const words = [...body.rows].every(row => !isFinite(number(row.cells[column].textContent)));
    const key = row => words ? row.cells[column].textContent : number(row.cells[column].textContent);
    const sorted = [...body.rows].sort((a, b) => key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0);
    body.append(...(down ? sorted.reverse() : sorted));
  }));
}

function themes() {
  const root = document.documentElement, button = document.getElementById("theme"), system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  const refresh = () => { button.textContent = dark() ? "Light" : "Dark"; CHARTS.forEach(draw); };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; refresh(); });
  system.addEventListener("change", refresh);
  button.textContent = dark() ? "Light" : "Dark";
  // Paper is white and narrow, whatever the screen is.
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; root.classList.add("printing"); document.querySelectorAll("details").forEach(d => d.open = true); refresh(); });
  addEventListener("afterprint", () => { before ? root.dataset.theme = before : delete root.dataset.theme; root.classList.remove("printing"); refresh(); });
}

function start(chart) {
  const box = home(chart), slider = box.querySelector("input");
  box.querySelector("[data-save=png]").addEventListener("click", () => savePicture(chart));
  box.querySelector("[data-save=csv]").addEventListener("click", () => saveData(chart));
  if (slider) slider.addEventListener("input", () => {
    states.get(chart).beta = slider.valueAsNumber;
    box.querySelector("output").textContent = slider.valueAsNumber ? slider.value : "off";
    draw(chart);
  });
  if (chart.relief) return views(chart);
  if (chart.lines) legend(chart);
  draw(chart);
}

document.querySelectorAll("table").forEach(sortable);
CHARTS.forEach(start);
themes();
