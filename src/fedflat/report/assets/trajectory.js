// The paths of trainings on a loss landscape (Trajectory in charts.py): those of the servers up to the round that the slider
// chose, and the clients of this round.
const PIECES = 8; // of a straight line that follows a surface

/** The rounds that the chart's panels have recorded. */
const trajectoryRounds = chart => [...new Set(chart.grids.flatMap(grid => grid.trajectories.flatMap(path => path.rounds)))].sort((a, b) => a - b);
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

/** The paths of a panel whose runs are selected. */
const shownPaths = grid => grid.trajectories.filter(path => isShown(RUNS[path.run]));

/** Plotly's traces of a panel's paths; on a surface if `raise` is true. One path is white, several have their runs' colours. */
function pathTraces(chart, grid, raise) {
  const several = grid.trajectories.length > 1;
  return shownPaths(grid).flatMap(path => {
    const look = several ? { paint: colour(path.run), halo: "#ffffff", client: colour(path.run) } : { paint: "#ffffff", halo: "#111111", client: "#ff7a45" };
    return tracesOf(path, look, points => raise ? above(chart, grid, points) : flat(points), raise, chosenRound(chart));
  });
}

/** The traces of one path up to a round: the clients of this round, the server's way, and a cross at its end. */
function tracesOf({ name, rounds, server, starts, clients, losses }, { paint, halo, client }, place, raise, round) {
  const last = rounds.findLastIndex(each => each <= round), line = points => place(raise ? bent(points) : points), scale = raise ? .6 : 1;
  const way = server.slice(0, last + 1), spokes = clients[last].flatMap(end => [starts[last], end, [null, null]]);
  const text = way.map((_, n) => `${plain(name)}, round ${rounds[n]}: loss ${losses[n]?.toPrecision(4) ?? "not finite"}`);
  const cross = raise ? { symbol: "cross", size: 4, color: "#111111" } : { symbol: "cross-thin", size: 11, line: { color: "#111111", width: 2 } };
  return [
    { ...line(spokes), mode: "lines", line: { color: "#ffffff", width: raise ? 3 : 1.2 }, opacity: .8, meta: "spokes", ...silent },
    { ...place(clients[last]), mode: "markers", marker: { color: client, size: 7 * scale, line: { color: "#ffffff", width: 1 } }, meta: "clients", showlegend: false,
      hovertemplate: `a client of ${plain(name)} after round ${rounds[last]}<extra></extra>` },
    { ...line(way), mode: "lines", line: { color: halo, width: raise ? 7 : 4.5 }, meta: "shadow", ...silent },
    { ...line(way), mode: "lines", line: { color: paint, width: raise ? 4 : 2 }, meta: "line", ...silent },
    { ...place(way), mode: "markers", text, marker: { color: paint, size: way.map((_, n) => (n === last ? 11 : 5) * scale), line: { color: halo, width: 1 } },
      meta: "server", showlegend: false, hovertemplate: "%{text}<extra></extra>" },
    { ...place([server.at(-1)]), mode: "markers", marker: cross, ...silent },
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
