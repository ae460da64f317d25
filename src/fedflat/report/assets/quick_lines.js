// Hide and show lines of charts that draw many together, without plotly: it needs some 40 ms for each such figure. Scales,
// crosses and what the mouse finds follow when the page is idle, when plotly draws the figure again.
const SETTLE = 500; // milliseconds without a choice until then

/** Everything but the selection on which the look of a chart's lines depends. */
const lookOf = chart => JSON.stringify([view.group, view.mean, view.x, isDark(), [...view.pinned], choices(chart.key).beta, choices(chart.key).seeds]);

/** Remember which lines plotly has drawn together: one group for each trace, which has one path for each of its lines. */
function rememberLines(chart, box, groups) {
  box.bundledLines = groups?.length && !view.mean && groups.every(lines => !lines[0].marks) ? { look: lookOf(chart), groups } : null;
  box.undoPatch = [];
}

/** Undo what was changed in a plot, before plotly draws it again. */
function forgetLines(box) {
  (box.undoPatch || []).forEach(undo => undo());
  box.undoPatch = [];
}

const lineKey = line => `${line.run} ${line.name}`;

/** Bring the lines of a chart up to date with the selection; return false if plotly has to draw it. */
function patchLines(chart) {
  if (!chart.lines) return false;
  const [box] = plots(chart), { look, groups } = box.bundledLines || {};
  if (look !== lookOf(chart)) return false;
  const traces = [...box.querySelectorAll(".scatterlayer > .trace")], paths = groups.map((_, n) => traces[n]?.querySelectorAll(".js-line") || []);
  const drawn = groups.map(lines => lines.filter(line => line.y.length)), shown = chosenLines(chart);
  if (shown.length <= MANY || drawn.some((lines, n) => lines.length !== paths[n].length)) return false;
  forgetLines(box);
  const wanted = new Map(shown.map(line => [lineKey(line), line]));
  drawn.forEach((lines, n) => lines.forEach((line, k) => {
    if (!wanted.delete(lineKey(line))) hideElement(box, paths[n][k]);
  }));
  view.pinned.forEach(id => wanted.forEach((line, key) => RUNS[line.run]?.id === id && wanted.delete(key))); // these have a trace of their own
  wanted.forEach(line => line.run >= 0 && addPath(box, traces[0].parentElement, line, choices(chart.key).beta));
  return true;
}

function hideElement(box, element) {
  element.style.display = "none";
  box.undoPatch.push(() => { element.style.display = ""; });
}

/** Add a line that plotly has not drawn. */
function addPath(box, layer, line, beta) {
  const { xaxis, yaxis } = box._fullLayout, y = beta ? average(line.y, beta) : line.y, path = document.createElementNS(layer.namespaceURI, "path");
  const points = line.x.map((x, n) => [x, y[n]]).filter(([, value]) => value !== null).map(([x, value]) => `${xaxis.c2p(x)},${yaxis.c2p(value)}`);
  path.setAttribute("d", `M${points.join("L")}`);
  path.setAttribute("class", "added");
  Object.assign(path.style, { fill: "none", stroke: colour(line.run), strokeWidth: "1.3px", opacity: .75 });
  layer.append(path);
  box.undoPatch.push(() => path.remove());
}

/** Draw again with plotly what was patched, one figure at a time, when the reader has paused and the browser is idle. */
function settle() {
  const next = () => {
    const chart = [...seen].find(each => due.has(each));
    if (!chart) return;
    draw(chart);
    requestIdleCallback(next);
  };
  clearTimeout(settle.timer);
  settle.timer = setTimeout(() => requestIdleCallback(next), SETTLE);
}
