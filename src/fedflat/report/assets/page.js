// Draws all charts and handles input: theme, view, smoothing, hiding lines, sorting tables.
const SURFACES = 8; // a browser keeps about this many WebGL contexts; further landscapes are drawn as contours
const CONFIG = { responsive: true, displayModeBar: false };
const webgl = !!document.createElement("canvas").getContext("webgl");
const states = new Map(CHARTS.map(chart => [chart, { beta: 0, view: webgl ? "3d" : "contours", hidden: new Set() }]));
/** The <figure> of a chart. */
const home = chart => document.getElementById(chart.key);
/** The elements in which plotly draws the chart's panels. */
const plots = chart => [...home(chart).querySelectorAll(".plot")];

/** Plotly's data and layout of each panel. */
function panels(chart) {
  const state = states.get(chart), theme = colours();
  if (chart.lines) return curves(chart, state, theme);
  if (!chart.relief) return heat(chart, theme);
  return chart.grids.map((grid, n) => (state.view === "3d" && n < SURFACES ? surface : contours)(chart, grid, theme));
}

function draw(chart) {
  const printing = document.documentElement.classList.contains("printing"), boxes = plots(chart);
  panels(chart).forEach(({ data, layout }, n) => {
    const box = boxes[n], fixed = { width: box.clientWidth, height: box.clientHeight };
    if (box.data && box.data[0].type !== data[0].type) Plotly.purge(box);
    Plotly.react(box, data, { ...layout, ...(printing ? fixed : {}) }, CONFIG); // printing does not wait for plotly's resize
  });
}

/** Turning one surface turns all others of the chart. */
function link(chart) {
  const follow = (plot, { eye, up }) => plots(chart)
    .filter(other => other !== plot && other.layout.scene)
    .forEach(other => Plotly.relayout(other, { "scene.camera.eye": eye, "scene.camera.up": up }));
  plots(chart).forEach(plot => plot.on("plotly_relayout", change => {
    if (change["scene.camera"]) follow(plot, change["scene.camera"]);
  }));
}

/** The line's colour and dashes, or its symbol, for the legend. */
function sample(line) {
  const paint = colour(line.colour);
  const mark = line.marks ? `<text x="13" y="8" font-size="11" text-anchor="middle" fill="${paint}">${symbol(line)[2]}</text>`
    : `<path d="M0 4H26" stroke="${paint}" stroke-width="3" stroke-dasharray="${strokes(line, 1.5)}"/>`;
  return `<svg aria-hidden="true" viewBox="0 0 26 8">${mark}</svg>`;
}

/** Add a button for each line, which hides or shows it. */
function legend(chart) {
  const box = home(chart).querySelector(".legend"), { hidden } = states.get(chart);
  chart.lines.forEach((line, n) => {
    const button = box.appendChild(document.createElement("button"));
    button.innerHTML = sample(line);
    button.append(line.name);
    button.setAttribute("aria-pressed", true);
    button.addEventListener("click", () => {
      hidden.delete(n) || hidden.add(n);
      button.setAttribute("aria-pressed", !hidden.has(n));
      draw(chart);
    });
  });
}

/** Add the colour scale of landscapes and the buttons that switch between surfaces and contours. */
function views(chart) {
  const box = home(chart), buttons = [...box.querySelectorAll("[data-view]")];
  const [low, high] = [chart.low, chart.high].map(loss => loss.toPrecision(3));
  const scale = `${chart.z.label} ${low}<i style="background:linear-gradient(90deg,${VIRIDIS})"></i>${high}`;
  box.querySelector(".legend").outerHTML = `<div class="scale">${scale}</div>`;
  const show = view => {
    states.get(chart).view = view;
    buttons.forEach(button => button.setAttribute("aria-pressed", button.dataset.view === view));
    plots(chart).forEach(plot => plot.removeAllListeners && plot.removeAllListeners("plotly_relayout"));
    draw(chart);
    link(chart);
  };
  buttons.forEach(button => button.addEventListener("click", () => show(button.dataset.view)));
  if (!webgl) {
    const message = "This browser has no WebGL, which surfaces need: contours are shown.";
    box.querySelector("figcaption").insertAdjacentHTML("beforeend", `<p class="warning">${message}</p>`);
    buttons[0].disabled = true;
  }
  show(states.get(chart).view);
}

/** The number in a cell; "–" (never reached or not measured) sorts above all numbers. */
function number(text) {
  const value = parseFloat(text.replace(/,/g, ""));
  return isNaN(value) ? Infinity : value;
}

/** Sort by a column on a click on its heading, in the other direction on the next click. */
function sortable(table) {
  const heads = [...table.querySelectorAll("th")], body = table.tBodies[0];
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const text = row => row.cells[column].textContent;
    const words = [...body.rows].every(row => !isFinite(number(text(row))));
    const key = row => words ? text(row) : number(text(row));
    const sorted = [...body.rows].sort((a, b) => key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0);
    body.append(...(down ? sorted.reverse() : sorted));
  }));
}

/** The light or dark theme follows the system until the button is clicked; printing is always light. */
function themes() {
  const root = document.documentElement, button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  const use = theme => {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    name();
    CHARTS.forEach(draw);
  };
  let before;
  name();
  button.addEventListener("click", () => use(dark() ? "light" : "dark"));
  system.addEventListener("change", () => use(root.dataset.theme));
  addEventListener("beforeprint", () => { // print in light colours and at the width of a sheet of paper
    before = root.dataset.theme;
    document.querySelectorAll("details").forEach(details => { details.open = true; });
    root.classList.add("printing");
    use("light");
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    use(before);
  });
}

/** Draw a chart and connect its controls. */
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
