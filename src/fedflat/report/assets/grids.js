// Heat maps and loss landscapes (Grids in charts.py).
const VIRIDIS = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"];
const LEVELS = 16;

function heat(chart, theme) {
  const colorbar = { thickness: 10, outlinewidth: 0, title: { text: plain(chart.z.label), side: "right" }, ...FORMS[chart.z.form] };
  const bare = { showgrid: false, zeroline: false };
  return chart.grids.map(grid => ({
    data: [{
      type: "heatmap", ...grid, zmin: chart.low, zmax: chart.high, colorscale: even([theme.low, theme.high]), colorbar,
      xgap: grid.x.length > 30 ? 0 : 1, ygap: grid.y.length > 30 ? 0 : 1,
      hovertemplate: `${chart.x.label} %{x}, ${chart.y.label} %{y}: %{z:.6~g}<extra></extra>`,
    }],
    layout: frame(theme, {
      xaxis: { ...axis(chart.x, theme), ...bare },
      yaxis: { ...axis(chart.y, theme), ...bare, dtick: grid.y.length <= 12 ? 1 : undefined },
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

/** A cross at the model and a circle at the lowest point. */
function marks(grid) {
  const [x, y] = lowest(grid), line = { color: "#ffffff", width: 2 };
  const marker = { symbol: ["cross-thin", "circle"], size: [11, 6], color: "#ffffff", line };
  return { x: [0, x], y: [0, y], mode: "markers", hoverinfo: "skip", marker };
}

function contours(chart, grid, theme) {
  const filled = {
    type: "contour", ...grid, zmin: chart.low, zmax: chart.high, autocontour: false, contours: levels(chart),
    colorscale: even(VIRIDIS), showscale: false, line: { width: .8, color: "rgba(255,255,255,.45)" },
    hovertemplate: `${chart.z.label} %{z:.4g}<extra></extra>`,
  };
  const layout = frame(theme, {
    margin: { l: 44, r: 8, t: 10, b: 40 },
    xaxis: { ...axis(chart.x, theme), constrain: "domain" },
    yaxis: { ...axis(chart.y, theme), constrain: "domain", scaleanchor: "x" },
  });
  return { data: [filled, marks(grid)], layout };
}

/** The same marks in 3-D, raised by half a level so that the surface does not hide them. */
function raised(chart, grid) {
  const [x, y, z] = lowest(grid), lift = levels(chart).size / 2;
  const middle = grid.z[grid.y.length >> 1][grid.x.length >> 1];
  const marker = { symbol: ["cross", "circle"], size: [5, 4], color: "#ffffff" };
  return { type: "scatter3d", x: [0, x], y: [0, y], z: [middle + lift, z + lift], mode: "markers", hoverinfo: "skip", marker };
}

function surface(chart, grid, theme) {
  const relief = {
    type: "surface", ...grid, cmin: chart.low, cmax: chart.high, colorscale: even(VIRIDIS), showscale: false,
    contours: { z: { show: true, ...levels(chart), color: "rgba(255,255,255,.6)", width: 1 } },
    lighting: { ambient: .75, diffuse: .5, specular: .08, roughness: .8 },
    hovertemplate: `${chart.z.label} %{z:.4g}<extra></extra>`,
  };
  const grey = { gridcolor: theme.line, zerolinecolor: theme.line, showbackground: false };
  const side = { title: { text: "" }, tickfont: { size: 10 }, nticks: 5, ...grey };
  const scene = {
    aspectmode: "manual", aspectratio: { x: 1, y: 1, z: .6 },
    camera: { eye: { x: 1.5, y: .98, z: 1.3 }, center: { x: 0, y: 0, z: -.12 } },
    xaxis: side, yaxis: side, zaxis: { ...side, range: [chart.low, chart.high] },
  };
  const layout = frame(theme, { margin: { l: 0, r: 0, t: 0, b: 0 }, uirevision: "camera", scene });
  return { data: [relief, raised(chart, grid)], layout };
}
