// The path of a training on a loss landscape (Trajectory in charts.py): that of the server up to the round that the slider
// chose, and the clients of this round.
const PIECES = 8; // of a straight line that follows a surface

/** The rounds that the chart's panels have recorded. */
const trajectoryRounds = chart => [...new Set(chart.grids.flatMap(grid => grid.trajectory.rounds))].sort((a, b) => a - b);
/** The round that the reader chose, or the last. */
const chosenRound = chart => choices(chart.key).round ?? trajectoryRounds(chart).at(-1);

/** The height of a surface at a point, interpolated between its corners and never above the scale. */
function heightAt(chart, grid, [x, y]) {
  const part = (axis, at) => Math.min(Math.max((at - axis[0]) / (axis[1] - axis[0]), 0), axis.length - 1.000001);
  const [i, j] = [part(grid.y, y), part(grid.x, x)], [row, column] = [Math.floor(i), Math.floor(j)], z = (a, b) => Math.min(grid.z[row + a][column + b] ?? chart.high, chart.high);
  const between = (a, b, at) => a + at * (b - a);
  return between(between(z(0, 0), z(0, 1), j - column), between(z(1, 0), z(1, 1), j - column), i - row);
}

/** Points as plotly's x and y, and on a surface also z, a little above it. */
function flat(points) {
  return { x: points.map(([x]) => x), y: points.map(([, y]) => y) };
}
function above(chart, grid, points) {
  const lift = levels(chart).size / 3;
  return { type: "scatter3d", ...flat(points), z: points.map(point => point[0] === null ? null : heightAt(chart, grid, point) + lift) };
}

/** A line through points with more points in between, so that it follows a surface. */
function bent(points) {
  return points.flatMap(([x, y], n) => {
    const [a, b] = points[n + 1] ?? [null, null];
    if (x === null || a === null) return [[x, y]];
    return [...Array(PIECES).keys()].map(piece => [x + piece / PIECES * (a - x), y + piece / PIECES * (b - y)]);
  });
}

/** Plotly's traces of a panel's path; on a surface if `raise` is true. */
function pathTraces(chart, grid, raise) {
  const { rounds, server, starts, clients, losses } = grid.trajectory, last = rounds.findLastIndex(round => round <= chosenRound(chart));
  const place = points => raise ? above(chart, grid, points) : flat(points), line = points => place(raise ? bent(points) : points);
  const way = server.slice(0, last + 1), spokes = clients[last].flatMap(end => [starts[last], end, [null, null]]), scale = raise ? .6 : 1;
  const text = way.map((_, n) => `round ${rounds[n]}: loss ${losses[n]?.toPrecision(4) ?? "not finite"}`);
  return [
    { ...line(spokes), mode: "lines", line: { color: "#ffffff", width: raise ? 3 : 1.2 }, opacity: .8, meta: "spokes", ...silent },
    { ...place(clients[last]), mode: "markers", marker: { color: "#ff7a45", size: 7 * scale, line: { color: "#ffffff", width: 1 } }, meta: "clients", showlegend: false,
      hovertemplate: `a client after round ${rounds[last]}<extra></extra>` },
    { ...line(way), mode: "lines", line: { color: "#111111", width: raise ? 7 : 4.5 }, meta: "shadow", ...silent },
    { ...line(way), mode: "lines", line: { color: "#ffffff", width: raise ? 4 : 2 }, meta: "line", ...silent },
    { ...place(way), mode: "markers", text, marker: { color: "#ffffff", size: way.map((_, n) => (n === last ? 11 : 5) * scale), line: { color: "#111111", width: 1 } },
      meta: "server", showlegend: false, hovertemplate: "%{text}<extra></extra>" },
  ];
}

/** Connect the slider over the rounds; `change` draws the chart again. */
function connectRounds(chart, slider, change) {
  const rounds = trajectoryRounds(chart), state = choices(chart.key), name = () => {
    slider.nextElementSibling.textContent = chosenRound(chart);
    slider.setAttribute("aria-valuetext", `round ${chosenRound(chart)}`);
  };
  slider.value = rounds.findLastIndex(round => round <= chosenRound(chart));
  name();
  slider.addEventListener("input", () => {
    state.round = rounds[slider.valueAsNumber];
    if (state.round === rounds.at(-1)) delete state.round;
    name();
    change();
  });
}
