// The sweep: the main metric against one setting, as a heat map over two, and as parallel coordinates over all that differ.
const inPercent = () => RUNS.every(run => run.share);
const metricName = () => new Set(RUNS.map(run => run.metric)).size === 1 ? RUNS[0].metric : "metric";
const metricLabel = key => key === "last" ? `${metricName()}, last 10 %` : `final ${metricName()}`;
const mean = values => values.reduce((a, b) => a + b, 0) / values.length;
const spread = values => values.length < 2 ? 0 : Math.sqrt(values.reduce((sum, v) => sum + (v - mean(values)) ** 2, 0) / (values.length - 1));

/** The settings that a sweep can be over: those in which finished runs of one method differ, numbers first, and the method. */
function sweepSettings() {
  const numeric = values => values.every(value => typeof value === "number" || value === undefined) ? 0 : 1;
  const left = new Set(["seeds", "engine", "device", "precision", "threads"]), finished = RUNS.filter(run => run.final.length);
  const methods = [...Map.groupBy(finished, run => run.settings.method).values()].map(differing), swept = key => !left.has(key) && methods.some(found => key in found);
  const found = Object.entries(differing(finished)), some = found.some(([key]) => swept(key));
  return found.filter(([key]) => swept(key) || (some && key === "method"))
    .sort(([, a], [, b]) => numeric(a) - numeric(b)).map(([key]) => key);
}

function startSweep() {
  const box = document.getElementById("sweep"), keys = sweepSettings();
  if (!box) return;
  box.hidden = !keys.length;
  document.querySelector("nav [href='#sweep']").hidden = box.hidden;
  if (box.hidden) return;
  const option = key => new Option(key.replaceAll("_", " "), key);
  const choose = (name, options, first) => {
    const field = box.querySelector(`[name=${name}]`);
    field.replaceChildren(...options);
    field.value = [...field.options].some(o => o.value === view.sweep[name]) ? view.sweep[name] : first;
    field.onchange = () => { view.sweep[name] = field.value; delete view.sweep.zoom; follow(); };
  };
  choose("over", keys.map(option), keys[0]);
  choose("second", [new Option("none", ""), ...keys.map(option)], "");
  choose("metric", ["last", "final"].map(key => new Option(metricLabel(key), key)), "last");
  box.querySelector(".sweep-plot").onkeydown = event => pressed(event.currentTarget, event);
}

const sweepChoice = name => document.querySelector(`#sweep [name=${name}]`).value;
const sweepRuns = (...keys) => shownRuns().filter(run => run.final.length && !run.diverged && keys.every(key => run.settings[key] !== undefined));

/** Accuracy against one setting: a point with a bar of one standard deviation for each run, in the run's colour. */
function sweepPoints(over, metric, theme) {
  const zoom = view.sweep.zoom || {}, runs = sweepRuns(over), numeric = runs.every(run => typeof run.settings[over] === "number");
  const xs = runs.map(run => run.settings[over]), wide = numeric && Math.min(...xs) > 0 && Math.max(...xs) / Math.min(...xs) > 20;
  const data = [{
    x: numeric ? xs : xs.map(String), y: runs.map(run => mean(run[metric])), mode: "markers", text: runs.map(run => plain(run.label)), meta: "sweep",
    error_y: { array: runs.map(run => spread(run[metric])), thickness: 1, width: 3, color: theme.soft },
    marker: { size: 9, color: runs.map(run => colour(RUNS.indexOf(run))) }, hovertemplate: `%{text}: %{y:${inPercent() ? ".2%" : ".4g"}}<extra></extra>`,
  }];
  const x = axis({ label: over.replaceAll("_", " "), form: "number", log: wide }, theme, numeric ? xs : [], zoom.x);
  const y = axis({ label: metricLabel(metric), form: inPercent() ? "percent" : "number" }, theme, [], zoom.y);
  return { data, layout: frame(theme, { hovermode: "closest", xaxis: numeric ? x : { ...x, type: "category", tickformat: "" }, yaxis: y }) };
}

/** Mean metric over two settings, over all selected runs of a cell. */
function sweepHeat(over, second, metric, theme) {
  const runs = sweepRuns(over, second), values = key => [...new Set(runs.map(run => run.settings[key]))].sort(natural);
  const [xs, ys] = [values(over), values(second)];
  const cell = (x, y) => { const found = runs.filter(r => r.settings[over] === x && r.settings[second] === y); return found.length ? mean(found.flatMap(r => r[metric])) : null; };
  const z = ys.map(y => xs.map(x => cell(x, y)));
  const side = key => ({ ...axis({ label: key.replaceAll("_", " "), form: "number" }, theme), type: "category", showgrid: false, tickformat: "" });
  const data = [{
    type: "heatmap", x: xs.map(String), y: ys.map(String), z, colorscale: even([theme.low, theme.high]), texttemplate: xs.length * ys.length > 150 ? "" : `%{z:${inPercent() ? ".1%" : ".3g"}}`,
    colorbar: { thickness: 10, outlinewidth: 0, tickformat: inPercent() ? ".0%" : "", title: { text: metricLabel(metric), side: "right" } }, xgap: 1, ygap: 1, hovertemplate: `%{x}, %{y}: %{z:${inPercent() ? ".2%" : ".4g"}}<extra></extra>`,
  }];
  return { data, layout: frame(theme, { xaxis: side(over), yaxis: side(second) }) };
}

/** One line for each run through its value of every setting, to its metric. */
function sweepParallel(metric, theme) {
  const runs = sweepRuns(), scores = runs.map(run => mean(run[metric]));
  const dimension = key => {
    const values = runs.map(run => run.settings[key]), label = plain(key.replaceAll("_", " "));
    if (values.every(value => typeof value === "number")) return { label, values };
    const text = value => String(value ?? "–"), names = [...new Set(values.map(text))].sort(natural);
    return { label, values: values.map(value => names.indexOf(text(value))), tickvals: [...names.keys()], ticktext: names };
  };
  const data = [{
    type: "parcoords", line: { color: scores, colorscale: even(isDark() ? SEQUENCE.dark : SEQUENCE.light) },
    dimensions: [...sweepSettings().slice(0, 8).map(dimension), { label: metricLabel(metric), values: scores, tickformat: inPercent() ? ".0%" : "" }],
  }];
  return { data, layout: frame(theme, { margin: { l: 70, r: 50, t: 50, b: 24 } }) };
}

/** The sweep in words; the table of results has all its numbers. */
function describeSweep(over, second, metric) {
  const runs = sweepRuns(over), form = value => inPercent() ? `${(100 * value).toFixed(1)} %` : value.toPrecision(4);
  const each = runs.slice(0, FEW).map(run => `${run.label} ${form(mean(run[metric]))}`);
  return `${metricLabel(metric)} against ${over}${second ? ` and ${second}` : ""}, ${runs.length} runs: ${each.join("; ")}. The table of results has all numbers.`;
}

/** Store the zoom of the sweep. */
function rememberSweep(change) {
  storeZoom(view.sweep.zoom ??= {}, change, "x");
  if (!Object.keys(view.sweep.zoom).length) delete view.sweep.zoom;
  writeAddress();
}

/** Draw the sweep for the current selection. */
function drawSweep() {
  const box = document.getElementById("sweep");
  if (!box || box.hidden) return;
  const theme = colours(), [over, second, metric] = ["over", "second", "metric"].map(sweepChoice), [points, parallel] = box.querySelectorAll(".sweep-plot");
  const { data, layout } = second && second !== over ? sweepHeat(over, second, metric, theme) : sweepPoints(over, metric, theme);
  if (points.data && points.data[0].type !== data[0].type) Plotly.purge(points);
  const isNew = !points.data;
  Plotly.react(points, data, layout, CONFIG);
  if (isNew) points.on("plotly_relayout", rememberSweep);
  points.setAttribute("aria-label", describeSweep(over, second, metric));
  if (webgl && sweepRuns().length > 1) {
    const drawn = sweepParallel(metric, theme);
    Plotly.react(parallel, drawn.data, drawn.layout, CONFIG);
  } else parallel.textContent = webgl ? "" : "Parallel coordinates need WebGL, which this browser does not have.";
}
