// Charts (charts.py) to plotly: every chart becomes a list of panels {data, layout}.
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const VIRIDIS = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"];
const FORMS = { number: {}, percent: { tickformat: ".0%", hoverformat: ".2%" }, bytes: { tickformat: "~s", ticksuffix: "B", hoverformat: ".4s" } };
const colour = number => COLOURS[number % COLOURS.length];
const even = colours => colours.map((c, i) => [i / (colours.length - 1), c]);

/** A colour of the style sheet, as light or dark has it now. */
function css(name) {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** Powers of ten only, where a logarithmic axis has room for them. */
function decades(values) {
  const logs = values.filter(v => v > 0).map(Math.log10);
  return Math.max(...logs) - Math.min(...logs) > 1.5 ? { dtick: Math.ceil((Math.max(...logs) - Math.min(...logs)) / 6) } : {};
}

function axis(a, theme, values = []) {
  return { title: { text: a.label, standoff: 6 }, type: a.log ? "log" : "linear", gridcolor: theme.line, zerolinecolor: theme.line,
    linecolor: theme.line, automargin: true, exponentformat: "power", ...FORMS[a.form], ...(a.log ? decades(values) : {}) };
}

function frame(theme, more) {
  return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: theme.ink, size: 12, family: "system-ui, sans-serif" },
    margin: { l: 56, r: 12, t: 8, b: 44 }, showlegend: false, hoverlabel: { bgcolor: theme.panel, bordercolor: theme.line, font: { color: theme.ink } },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", ...more }; // a finger scrolls the page
}

/** Exponential moving average: s = β s + (1 - β) y, divided by 1 - βⁿ so that it starts at y. */
function average(values, beta) {
  let sum = 0, weight = 0;
  return values.map(y => { sum = beta * sum + (1 - beta) * y; weight = beta * weight + 1 - beta; return sum / weight; });
}

function curves(chart, state, theme) {
  const shown = chart.lines.filter((_, n) => !state.hidden.has(n));
  const soft = values => state.beta ? average(values, state.beta) : values;
  const bands = shown.filter(line => line.low.length).map(line => ({ x: [...line.x, ...[...line.x].reverse()], y: [...soft(line.high), ...[...soft(line.low)].reverse()],
    fill: "toself", fillcolor: colour(line.colour) + "2b", line: { width: 0 }, mode: "lines", hoverinfo: "skip", showlegend: false }));
  const raw = state.beta ? shown.map(line => ({ x: line.x, y: line.y, mode: "lines", line: { color: colour(line.colour), width: 1 }, opacity: .3,
    hoverinfo: "skip", showlegend: false, meta: "raw" })) : [];
  const lines = shown.map(line => ({ x: line.x, y: soft(line.y), name: line.name, mode: line.marks ? "markers" : "lines", meta: "line",
    line: { color: colour(line.colour), width: 2, dash: DASHES[line.dash % DASHES.length] }, marker: { color: colour(line.colour), size: 8, opacity: .8 } }));
  const diagonal = chart.diagonal ? [equal(chart.lines, theme)] : [];
  const joined = chart.lines.every(line => !line.marks), xs = shown.flatMap(line => line.x), ys = shown.flatMap(line => line.y);
  const both = chart.diagonal ? [...xs, ...ys] : null;
  return [{ data: [...bands, ...diagonal, ...raw, ...lines], layout: frame(theme, { xaxis: axis(chart.x, theme, both || xs), yaxis: axis(chart.y, theme, both || ys), hovermode: joined ? "x unified" : "closest" }) }];
}

/** The line y = x across all points. */
function equal(lines, theme) {
  const values = lines.flatMap(line => [...line.x, ...line.y]).filter(v => v > 0), ends = [Math.min(...values), Math.max(...values)];
  return { x: ends, y: ends, mode: "lines", line: { color: theme.soft, width: 1, dash: "dot" }, hoverinfo: "skip", showlegend: false };
}

function heat(chart, state, theme) {
  const bar = { thickness: 10, outlinewidth: 0, title: { text: chart.z.label, side: "right" }, ...FORMS[chart.z.form] };
  return chart.grids.map(grid => ({
    data: [{ type: "heatmap", x: grid.x, y: grid.y, z: grid.z, zmin: chart.low, zmax: chart.high, colorscale: even([theme.low, theme.high]), colorbar: bar,
      xgap: grid.x.length > 60 ? 0 : 1, ygap: grid.y.length > 30 ? 0 : 1, hovertemplate: `${chart.x.label} %{x}, ${chart.y.label} %{y}: %{z}<extra></extra>` }],
    layout: frame(theme, { xaxis: { ...axis(chart.x, theme), showgrid: false, zeroline: false },
      yaxis: { ...axis(chart.y, theme), showgrid: false, zeroline: false, dtick: grid.y.length <= 12 ? 1 : undefined } }) }));
}

/** Where a landscape is lowest: [x, y, loss]. */
function lowest(grid) {
  let best = [0, 0, Infinity];
  grid.z.forEach((row, i) => row.forEach((z, j) => { if (z !== null && z < best[2]) best = [grid.x[j], grid.y[i], z]; }));
  return best;
}

function contours(chart, grid, theme) {
  const [x, y] = lowest(grid), step = (chart.high - chart.low) / 16;
  const dot = (at, symbol, size) => ({ x: [at[0]], y: [at[1]], mode: "markers", hoverinfo: "skip", marker: { symbol, size, color: "#ffffff", line: { color: "#ffffff", width: 2 } } });
  return { data: [{ type: "contour", x: grid.x, y: grid.y, z: grid.z, zmin: chart.low, zmax: chart.high, autocontour: false, colorscale: even(VIRIDIS), showscale: false,
      contours: { start: chart.low, end: chart.high, size: step }, line: { width: .8, color: "rgba(255,255,255,.45)" }, hovertemplate: "loss %{z:.4g}<extra></extra>" },
      dot([0, 0], "cross-thin", 11), dot([x, y], "circle", 6)],
    layout: frame(theme, { margin: { l: 44, r: 8, t: 10, b: 40 }, xaxis: { ...axis(chart.x, theme), constrain: "domain" },
      yaxis: { ...axis(chart.y, theme), scaleanchor: "x", constrain: "domain" } }) };
}

function surface(chart, grid, theme) {
  const [x, y, z] = lowest(grid), step = (chart.high - chart.low) / 16, middle = grid.z[grid.y.length >> 1][grid.x.length >> 1];
  const side = { gridcolor: theme.line, zerolinecolor: theme.line, showbackground: false, tickfont: { size: 10 }, nticks: 5 };
  return { data: [{ type: "surface", x: grid.x, y: grid.y, z: grid.z, cmin: chart.low, cmax: chart.high, colorscale: even(VIRIDIS), showscale: false,
      contours: { z: { show: true, start: chart.low, end: chart.high, size: step, color: "rgba(255,255,255,.6)", width: 1 } },
      lighting: { ambient: .75, diffuse: .5, specular: .08, roughness: .8 }, hovertemplate: "loss %{z:.4g}<extra></extra>" },
      { type: "scatter3d", x: [0, x], y: [0, y], z: [middle + step / 2, z + step / 2], mode: "markers", hoverinfo: "skip", marker: { symbol: ["cross", "circle"], size: [5, 4], color: "#ffffff" } }],
    layout: frame(theme, { margin: { l: 0, r: 0, t: 0, b: 0 }, uirevision: "camera", scene: { aspectmode: "manual", aspectratio: { x: 1, y: 1, z: .6 }, camera: { eye: { x: 1.25, y: .82, z: 1.08 }, center: { x: 0, y: 0, z: -.12 } },
      xaxis: { ...side, title: { text: "" } }, yaxis: { ...side, title: { text: "" } }, zaxis: { ...side, title: { text: "" }, range: [chart.low, chart.high] } } }) };
}
