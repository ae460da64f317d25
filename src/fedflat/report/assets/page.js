// Draws the charts that are on the screen, keeps them up to date with the reader's choices, and connects their controls.
const CONFIG = { responsive: true, displayModeBar: false };
const webgl = !!document.createElement("canvas").getContext("webgl");
let RUNS, CHARTS, STYLES, SETTINGS, JUDGED, due, seen, cameraLocked = false;

/** The <figure> of a chart. */
const home = chart => document.getElementById(chart.key);
/** The elements in which plotly draws the chart's panels. */
const plots = chart => [...home(chart).querySelectorAll(".plot")];
/** How landscapes are drawn: "3d", "contours" or "overlay". */
const viewOf = chart => webgl ? choices(chart.key).view || (chart.grids[0].trajectories.length ? "contours" : "3d") : "contours";
const isPrinting = () => document.documentElement.classList.contains("printing");

/** Plotly's data and layout of each panel, null for a panel that is not shown; a picture has a scale of its own. */
function panels(chart, picture = false) {
  const state = choices(chart.key), theme = colours();
  if (chart.lines) return curves(chart, state, theme);
  if (chart.relief) return landscapes(chart, state, theme, picture);
  const chosen = new Set(chosenPanels(chart));
  return heat(chart, theme).map((panel, n) => chosen.has(n) ? panel : null);
}

function draw(chart) {
  due.delete(chart);
  if (chart.lines) legend(chart); // before the plot, which takes the height that the legend leaves
  if (chart.correlated) home(chart).querySelector("figcaption p").textContent = `One point per run and seed. ${correlationText(chosenLines(chart))}`;
  if (chart.relief) namePanels(chart);
  const boxes = plots(chart), drawn = panels(chart);
  drawn.forEach((panel, n) => { boxes[n].parentElement.hidden = !panel; }); // before any is drawn: the others take the room
  drawn.forEach((panel, n) => {
    const box = boxes[n];
    if (!panel) return box.data && Plotly.purge(box);
    const fixed = isPrinting() ? { width: box.clientWidth, height: box.clientHeight } : {}; // printing does not wait for plotly's resize
    if (box.data && box.data.length && box.data[0].type !== panel.data[0]?.type) Plotly.purge(box);
    const isNew = !box.data;
    forgetLines(box);
    Plotly.react(box, panel.data, { ...panel.layout, ...fixed }, CONFIG);
    if (box._fullLayout.width !== box.clientWidth && box.clientWidth && !isPrinting()) Plotly.Plots.resize(box);
    rememberLines(chart, box, panel.bundles);
    if (isNew) box.on("plotly_relayout", change => remember(chart, box, change));
    box.setAttribute("aria-label", describe(chart));
  });
}

/** Draw what is on the screen now and the rest when it is scrolled to. Where lines only come and go, plotly draws later. */
function redraw(charts = CHARTS) {
  charts.forEach(chart => due.add(chart));
  const visible = [...seen].filter(chart => due.has(chart)), left = visible.filter(chart => !patchLines(chart));
  if (left.length < visible.length) settle();
  left.forEach((chart, n) => n ? setTimeout(() => due.has(chart) && draw(chart), 30 * n) : draw(chart)); // the first at once, so that the page answers
}
/** Draw all charts, for printing and tests. */
function drawAll() {
  [...due].forEach(draw);
  drawSweep();
}

/** Store what the reader did in a plot: the zoom of curves, and the camera, which all surfaces of a chart share. */
function remember(chart, plot, change) {
  const state = choices(chart.key), zoom = state.zoom ??= {};
  storeZoom(zoom, change, view.x);
  if (!chart.lines || !Object.keys(zoom).length) delete state.zoom;
  const camera = change["scene.camera"];
  if (camera && !cameraLocked) {
    cameraLocked = true;
    state.camera = structuredClone(camera);
    const others = plots(chart).filter(other => other !== plot && other.layout?.scene);
    Promise.all(others.map(other => Plotly.relayout(other, { "scene.camera": structuredClone(camera) }))).finally(() => { cameraLocked = false; });
  }
  writeAddress();
}

/** A button for each line of a chart with few of them, which hides its run or shows it again. */
function legend(chart) {
  const box = home(chart).querySelector(".legend"), listed = chart.lines.filter(line => line.run < 0 || RUNS[line.run].listed);
  if (listed.length > FEW) return box.replaceChildren();
  box.replaceChildren(...listed.map(line => {
    const button = document.createElement("button");
    button.type = "button";
    button.innerHTML = sample(line);
    button.append(line.name);
    button.setAttribute("aria-pressed", line.run < 0 || isShown(RUNS[line.run]));
    button.disabled = line.run < 0;
    button.onclick = () => { toggle([RUNS[line.run]]); home(chart).querySelectorAll(".legend button")[listed.indexOf(line)].focus(); };
    return button;
  }));
}

/** The names of landscapes; one scene with all surfaces names them with their colours instead of the scale. */
function namePanels(chart) {
  const overlay = viewOf(chart) === "overlay";
  home(chart).querySelector(".scale").hidden = overlay;
  home(chart).querySelectorAll("h4").forEach((head, n) => {
    const named = namesIn(chart, n);
    head.textContent = named.length ? "" : chart.grids[n].name;
    named.forEach(({ run, name }) => { head.insertAdjacentHTML("beforeend", sample({ run, dash: 0 })); head.append(name); });
  });
}

/** The colour scale of landscapes, and the buttons for surfaces, contours and one scene with all surfaces. */
function views(chart) {
  const box = home(chart), buttons = [...box.querySelectorAll("[data-view]")];
  const [low, high] = [chart.low, chart.high].map(loss => loss.toPrecision(3));
  const scale = `${chart.z.label} ${low}<i style="background:linear-gradient(90deg,${VIRIDIS})"></i>${high}`;
  box.querySelector(".legend").outerHTML = `<div class="scale">${scale}</div>`;
  const press = () => buttons.forEach(button => button.setAttribute("aria-pressed", button.dataset.view === viewOf(chart)));
  buttons.forEach(button => button.addEventListener("click", () => {
    choices(chart.key).view = button.dataset.view;
    press();
    writeAddress();
    draw(chart);
  }));
  if (!webgl) {
    const message = "This browser has no WebGL, which surfaces need: contours are shown.";
    box.querySelector("figcaption").insertAdjacentHTML("beforeend", `<p class="warning">${message}</p>`);
    buttons.filter(button => button.dataset.view !== "contours").forEach(button => { button.disabled = true; });
  }
  press();
}

/** Bring everything up to date with the view after a choice. */
function follow() {
  showSelection();
  redraw();
  followTables();
  if (sweepSeen) drawSweep();
  writeAddress();
}

/** The light or dark theme follows the system until the button is clicked; printing is always light. */
function themes() {
  const root = document.documentElement, button = document.getElementById("theme");
  const use = theme => {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    button.textContent = isDark() ? "Light" : "Dark";
    follow();
  };
  const choose = theme => { view.theme = theme; use(theme); };
  button.addEventListener("click", () => choose(isDark() ? "light" : "dark"));
  system.addEventListener("change", () => use(view.theme));
  addEventListener("beforeprint", () => { // print in light colours and at the width of a sheet of paper
    document.querySelectorAll("details").forEach(details => { details.open = true; });
    root.classList.add("printing");
    use("light");
    drawAll();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    use(view.theme);
  });
  button.textContent = isDark() ? "Light" : "Dark";
}

/** Connect the controls of a chart. */
function connect(chart) {
  const box = home(chart), slider = box.querySelector("[name=beta]"), rounds = box.querySelector("[name=round]"), seeds = box.querySelector("[data-seeds]"), state = choices(chart.key);
  const on = (selector, act) => box.querySelector(selector).addEventListener("click", act);
  on("[data-save=png]", () => savePicture(chart));
  on("[data-save=csv]", () => saveData(chart));
  on("[data-numbers]", event => showNumbers(chart, event.currentTarget));
  plots(chart).forEach(plot => plot.addEventListener("keydown", event => pressed(plot, event)));
  const change = () => { writeAddress(); draw(chart); };
  if (slider) {
    const name = () => { box.querySelector("output").textContent = state.beta || "off"; };
    slider.value = state.beta || 0;
    name();
    slider.addEventListener("input", () => { if (slider.valueAsNumber) state.beta = slider.valueAsNumber; else delete state.beta; name(); change(); });
  }
  if (seeds) {
    seeds.setAttribute("aria-pressed", !!state.seeds);
    seeds.addEventListener("click", () => { if (state.seeds) delete state.seeds; else state.seeds = 1; seeds.setAttribute("aria-pressed", !!state.seeds); change(); });
  }
  if (rounds) connectRounds(chart, rounds, change);
  if (chart.relief) views(chart);
}

/** Draw a chart when it comes onto the screen. */
let watcher, sweepSeen = false;
function watchScreen() {
  if (watcher) watcher.disconnect();
  watcher = new IntersectionObserver(entries => entries.forEach(({ target, isIntersecting }) => {
    if (target.id === "sweep") { sweepSeen = isIntersecting; return isIntersecting && drawSweep(); }
    const chart = CHARTS.find(one => one.key === target.id);
    if (isIntersecting) { seen.add(chart); if (due.has(chart)) draw(chart); } else seen.delete(chart);
  }), { rootMargin: "120px" });
  [...CHARTS.map(home), document.getElementById("sweep")].filter(Boolean).forEach(box => watcher.observe(box));
}

/** Links to sections scroll without replacing the view in the address. */
function navigate() {
  document.querySelectorAll("nav a").forEach(link => link.addEventListener("click", event => {
    event.preventDefault();
    view.at = link.hash.slice(1);
    document.querySelector(link.hash).scrollIntoView();
    writeAddress();
  }));
}

/** Take over the data in the page and connect everything in <main>; after an update of a live page once more. */
function boot() {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  [RUNS, CHARTS, STYLES, JUDGED, due, seen] = [data.runs, data.charts, data.styles, data.judged, new Set(data.charts), new Set()];
  SETTINGS = differing();
  RUNS.forEach(run => { run.listed = true; });
  if (boot.again) RUNS.forEach(run => { run.listed = matches(run, view.filter); }); else readAddress();
  boot.again = true;
  if (view.theme) document.documentElement.dataset.theme = view.theme;
  followTables.looks = "";
  listRuns();
  showSelection();
  const x = document.getElementById("x-axis");
  x.value = view.x;
  x.onchange = () => { view.x = x.value; follow(); };
  document.querySelectorAll("table.sortable").forEach(sortable);
  CHARTS.forEach(connect);
  startSweep();
  followTables();
  navigate();
  watchScreen();
}

boot();
themes();
new ResizeObserver(([{ target }]) => document.documentElement.style.setProperty("--head", `${target.offsetHeight}px`)).observe(document.querySelector("header"));
if (document.getElementById(view.at)) document.getElementById(view.at).scrollIntoView();
