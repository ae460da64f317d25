// Heat maps and loss landscapes (Grids in charts.py).
const VIRIDIS = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"];
const LEVELS = 16;
const SURFACES = 8; // a browser keeps about this many WebGL contexts; further landscapes are drawn as contours
const CAMERA = { eye: { x: 1.72, y: 1.12, z: 1.45 }, center: { x: 0, y: 0, z: -.12 }, up: { x: 0, y: 0, z: 1 } };

/** The numbers of the panels that the selection shows. */
const chosenPanels = chart => [...chart.grids.keys()].filter(n => {
  const { run, trajectories } = chart.grids[n], runs = run === null ? trajectories.map(path => path.run) : [run];
  return !runs.length || runs.some(number => isShown(RUNS[number]));
});

/** The runs that one panel shows together, with the names that their colours have: overlaid surfaces, or paths on one surface. */
function namesIn(chart, n) {
  if (chart.relief && viewOf(chart) === "overlay") return chosenPanels(chart).map(k => chart.grids[k]);
  return chart.grids[n].trajectories.length > 1 ? shownPaths(chart.grids[n]) : [];
}

/** A name in lines of about 18 letters, as plotly writes them. */
const inLines = name => plain(name.replace(/(.{1,18})(\s+|$)/g, "$1\n").trim()).replaceAll("\n", "<br>");

/** Names instead of numbers along an axis. */
const named = names => names.length ? { tickvals: [...names.keys()], ticktext: names.map(inLines), dtick: undefined, tickformat: "" } : {};

/** Whether rows and columns are the same things; such a matrix begins at the top. */
const isMatrix = grid => grid.x_names.length && grid.x_names.join() === grid.y_names.join();

/** From the left edge of the first column of any panel to the right edge of the last, so that all panels have one axis. */
function commonEnds(grids) {
  const xs = [...new Set(grids.flatMap(grid => grid.x))].sort((a, b) => a - b), [first, second = first + 1] = xs;
  return [first - (second - first) / 2, xs.at(-1) + (xs.at(-1) - (xs.at(-2) ?? first - 1)) / 2];
}

function heat(chart, theme) {
  const colorbar = { thickness: 10, outlinewidth: 0, title: { text: plain(chart.z.label), side: "right" }, ...FORMS[chart.z.form] };
  const bare = { showgrid: false, zeroline: false }, ends = commonEnds(chart.grids);
  const scale = chart.low < 0 ? [theme.warm, theme.panel, theme.high] : [theme.low, theme.high];
  return chart.grids.map(grid => chart.key === "wins" ? winGrid(grid) : grid.members.length ? selectedRows(grid) : grid).map(grid => ({
    data: [{
      type: "heatmap", x: grid.x, y: grid.y, z: grid.z, zmin: chart.low, zmax: chart.high, colorscale: even(scale), colorbar,
      xgap: grid.x.length > 30 ? 0 : 1, ygap: grid.y.length > 30 ? 0 : 1,
      ...(grid.text.length ? { text: grid.text, texttemplate: "%{text}" } : {}),
      hovertemplate: `${chart.x.label} %{x}, ${chart.y.label} %{y}: %{z:.6~g}<extra></extra>`,
    }],
    layout: frame(theme, {
      xaxis: { ...axis(chart.x, theme, [], grid.x_names.length ? undefined : ends), ...bare, ...named(grid.x_names) },
      yaxis: { ...axis(chart.y, theme), ...bare, dtick: grid.y.length <= 12 ? 1 : undefined, ...named(grid.y_names), ...(isMatrix(grid) ? { autorange: "reversed" } : {}) },
    }),
  }));
}

/** The lowest point of a landscape: [x, y, loss]. */
function lowest(grid) {
  let best = [0, 0, Infinity];
  grid.z.forEach((row, i) => row.forEach((z, j) => {
    if (z !== null && z < best[2]) best = [grid.x[j], grid.y[i], z];
  }));
  return best;
}

/** Contour levels from the lower to the upper end of the scale, the same for contours and surfaces. */
function levels(chart) {
  return { start: chart.low, end: chart.high, size: (chart.high - chart.low) / LEVELS };
}

/** The scale of the losses, which pictures have beside each panel and the page above all. */
const lossBar = (chart, shown) => ({
  showscale: shown, colorbar: { thickness: 10, len: .8, outlinewidth: 0, title: { text: plain(chart.z.label), side: "right" }, tickformat: "~g" },
});

/** A cross at the model and a circle at the lowest point. */
function marks(grid) {
  const [x, y] = lowest(grid), marker = { symbol: ["cross-thin", "circle"], size: [11, 6], color: "#ffffff", line: { color: "#ffffff", width: 2 } };
  return { x: [0, x], y: [0, y], mode: "markers", hoverinfo: "skip", showlegend: false, marker };
}

function contours(chart, grid, theme, state, picture) {
  const filled = {
    type: "contour", x: grid.x, y: grid.y, z: grid.z, zmin: chart.low, zmax: chart.high, autocontour: false, contours: levels(chart),
    colorscale: even(VIRIDIS), ...lossBar(chart, picture), line: { width: .8, color: "rgba(255,255,255,.45)" },
    hovertemplate: `${chart.z.label} %{z:.4g}<extra></extra>`,
  };
  const paths = grid.trajectories.length, square = paths ? {} : { constrain: "domain" }, along = (side, own) => axis({ ...side, label: own || side.label }, theme);
  const layout = frame(theme, {
    margin: { l: 44, r: 8, t: 10, b: 40 },
    xaxis: { ...along(chart.x, grid.x_label), ...square },
    yaxis: { ...along(chart.y, grid.y_label), ...square, ...(paths ? {} : { scaleanchor: "x" }) },
  });
  return { data: [filled, ...(paths ? pathTraces(chart, grid, false) : [marks(grid)])], layout };
}

/** The same marks in 3-D, raised by half a level so that the surface does not hide them. */
function raised(chart, grid) {
  const [x, y, z] = lowest(grid), lift = levels(chart).size / 2;
  const middle = grid.z[grid.y.length >> 1][grid.x.length >> 1];
  const marker = { symbol: ["cross", "circle"], size: [5, 4], color: "#ffffff" };
  return { type: "scatter3d", x: [0, x], y: [0, y], z: [middle + lift, z + lift], mode: "markers", hoverinfo: "skip", showlegend: false, marker };
}

/** The scene of surfaces: axes with titles, and the camera that all panels share. */
function scene(chart, theme, state, grid = {}) {
  const grey = { gridcolor: theme.line, zerolinecolor: theme.line, showbackground: false };
  const side = label => ({ title: { text: plain(label), font: { size: 11 } }, tickfont: { size: 10 }, nticks: 5, tickformat: "~g", ...grey });
  return {
    aspectmode: "manual", aspectratio: { x: 1, y: 1, z: .6 }, camera: structuredClone(state.camera || CAMERA),
    xaxis: side(grid.x_label || chart.x.label), yaxis: side(grid.y_label || chart.y.label), zaxis: { ...side(chart.z.label), range: [chart.low, chart.high] },
  };
}

function surface(chart, grid, theme, state, picture) {
  const relief = {
    type: "surface", x: grid.x, y: grid.y, z: grid.trajectories.length ? grid.z.map(row => row.map(z => z > chart.high ? null : z)) : grid.z, cmin: chart.low, cmax: chart.high, colorscale: even(VIRIDIS), ...lossBar(chart, picture),
    contours: { z: { show: true, ...levels(chart), color: "rgba(255,255,255,.6)", width: 1 } },
    lighting: { ambient: .75, diffuse: .5, specular: .08, roughness: .8 },
    hovertemplate: `${chart.z.label} %{z:.4g}<extra></extra>`,
  };
  const marked = grid.trajectories.length ? pathTraces(chart, grid, true) : [raised(chart, grid)];
  return { data: [relief, ...marked], layout: frame(theme, { margin: { l: 0, r: 0, t: 0, b: 0 }, scene: scene(chart, theme, state, grid) }) };
}

/** All chosen surfaces in one scene, each in its run's colour; the lowest first, since WebGL lays transparent ones over each other in turn. */
function overlaid(chart, theme, state) {
  const height = grid => mean(grid.z.flat().filter(z => z !== null)), grids = chosenPanels(chart).map(n => chart.grids[n]);
  const data = grids.sort((a, b) => height(a) - height(b)).map(grid => ({
    type: "surface", x: grid.x, y: grid.y, z: grid.z.map(row => row.map(z => z > chart.high ? null : z)), showscale: false, opacity: .8,
    name: plain(grid.name), colorscale: [[0, colour(grid.run)], [1, colour(grid.run)]],
    contours: { z: { show: true, ...levels(chart), color: theme.paper, width: 1 } },
    lighting: { ambient: .65, diffuse: .7, specular: .05 }, hovertemplate: `${plain(grid.name)}: %{z:.4g}<extra></extra>`,
  }));
  return { data, layout: frame(theme, { margin: { l: 0, r: 0, t: 0, b: 0 }, scene: scene(chart, theme, state) }) };
}

/** Plotly's data and layout of every panel of a chart of landscapes; null for panels that are not shown. */
function landscapes(chart, state, theme, picture) {
  const chosen = chosenPanels(chart), shape = viewOf(chart);
  return chart.grids.map((grid, n) => {
    const place = chosen.indexOf(n);
    if (place < 0 || (shape === "overlay" && place)) return null;
    if (shape === "overlay") return overlaid(chart, theme, state);
    return (shape === "3d" && place < SURFACES ? surface : contours)(chart, grid, theme, state, picture);
  });
}
