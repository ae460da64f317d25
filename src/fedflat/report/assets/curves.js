// Charts of lines (Curves in charts.py). A line is a ChartLine; soft(values) smooths values or returns them as they are.
const MANY = 24; // from here on lines of one colour are one trace without bands and dashes, which keeps the page fluid
const POINTS = 8000; // of all these lines together
const FEW = 12; // up to here a figure has a legend and shows all values of one x together

/** Exponential moving average: s = β s + (1 - β) y, divided by 1 - βⁿ so that it starts at y. */
function average(values, beta) {
  let sum = 0, weight = 0;
  return values.map(y => {
    if (y === null) return null;
    sum = beta * sum + (1 - beta) * y;
    weight = beta * weight + 1 - beta;
    return sum / weight;
  });
}

const silent = { hoverinfo: "skip", showlegend: false };

/** The area between line.low and line.high. */
function band(line, soft) {
  const x = [...line.x, ...[...line.x].reverse()], y = [...soft(line.high), ...[...soft(line.low)].reverse()];
  return { x, y, mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: colour(line.run) + "2b", ...silent };
}

/** A thin, faint line: one that was smoothed, or a single seed. */
function faint(line, y, meta) {
  const thin = { color: colour(line.run), width: 1 };
  return { x: line.x, y, mode: "lines", line: thin, opacity: meta === "raw" ? .3 : .6, meta, ...silent };
}

/** The line itself, or its markers. */
function stroke(line, soft, shape) {
  return {
    x: line.x, y: soft(line.y), name: plain(line.name), meta: "line", mode: line.marks ? "markers" : "lines",
    line: { color: colour(line.run), width: 2, dash: strokes(line, 2) || "solid", shape },
    marker: { color: colour(line.run), symbol: symbol(line)[0], size: 8, opacity: .8 },
  };
}

/** All lines of one colour as one trace, with gaps between them; of each line every step-th point and the last. */
function bundle(lines, soft, step) {
  const x = [], y = [], text = [];
  lines.forEach(line => {
    const name = plain(line.name), last = line.x.length - 1;
    soft(line.y).forEach((value, n) => {
      if (n % step && n !== last) return;
      x.push(line.x[n]); y.push(value); text.push(name);
    });
    x.push(null); y.push(null); text.push("");
  });
  const paint = colour(lines[0].run), marks = lines[0].marks;
  return {
    x, y, text, mode: marks ? "markers" : "lines", line: { color: paint, width: 1.3, simplify: false }, opacity: .75, meta: "bundle",
    marker: { color: paint, size: 6 }, hovertemplate: "%{text}: %{y}<extra></extra>",
  };
}

/** Where a scale is cut off, so that the numbers of diverged runs do not flatten all others; {} if they do not. */
function cutOff(chart, lines) {
  const [kept, lost] = [false, true].map(diverged => lines.filter(line => line.run >= 0 && !!RUNS[line.run].diverged === diverged));
  if (chart.y.form === "percent" || chart.y.log || !kept.length) return {};
  const known = (group, keys) => group.flatMap(line => keys.flatMap(key => line[key])).filter(value => value !== null);
  const values = known(kept, ["y", "low", "high"]), [low, high] = [least(values), -least(values.map(value => -value))], room = high - low || 1;
  if (known(lost, ["y"]).every(value => value <= high + 3 * room && value >= low - 3 * room)) return {};
  return { clipmin: low - .06 * room, clipmax: high + .06 * room };
}
const least = values => values.reduce((a, b) => Math.min(a, b), Infinity);

/** ✖ where a run's loss stopped being finite, or at the edge where the scale is cut off. */
function losses(lines, soft, { clipmin = -Infinity, clipmax = Infinity }) {
  const lost = lines.filter(line => line.lost && line.lost[1] !== null);
  const height = line => { const n = line.x.indexOf(line.lost[0]); return n < 0 ? line.lost[1] : soft(line.y)[n]; };
  const at = line => Math.max(clipmin, Math.min(clipmax, height(line)));
  return lost.length ? [{
    x: lost.map(line => line.lost[0]), y: lost.map(at), text: lost.map(line => `${plain(line.name)} diverged`), meta: "lost", mode: "markers", cliponaxis: false,
    hovertemplate: "%{text}<extra></extra>", showlegend: false,
    marker: { symbol: "x", size: 12, color: lost.map(line => colour(line.run)), line: { width: 1.5, color: colours().paper } },
  }] : [];
}

/** ✖ at the top of the chart for a run whose loss never was finite. */
function neverFinite(lines) {
  return lines.filter(line => line.lost && line.lost[1] === null).map(line => ({
    x: line.lost[0], y: 1, yref: "paper", yanchor: "top", text: `✖ ${plain(line.name)}`, showarrow: false, font: { color: colour(line.run) },
  }));
}

/** The line y = x across all points. */
function diagonal(values, theme) {
  const positive = values.filter(v => v > 0), ends = [Math.min(...positive), Math.max(...positive)];
  return { x: ends, y: ends, mode: "lines", line: { color: theme.soft, width: 1, dash: "dot" }, ...silent };
}

const XS = { round: null, bytes: { label: "sent in total", form: "bytes" }, seconds: { label: "seconds of training", form: "seconds" } };

/** A line over rounds on the axis that the reader chose: rounds, bytes or seconds; null if the run does not have it. */
function onChosenAxis(line) {
  const run = RUNS[line.run];
  if (view.x === "bytes") return run.bytes ? { ...line, ...moved(line, x => x * run.bytes) } : null;
  const at = new Map(run.seconds);
  return at.size ? { ...line, ...moved(line, x => at.get(x) ?? null) } : null;
}
const moved = (line, move) => ({ x: line.x.map(move), lost: line.lost && [move(line.lost[0]), line.lost[1]] });

/** One line per value of the setting to colour by: the mean of its runs wherever all of them have a value. */
function groupMeans(lines) {
  const groups = Map.groupBy(lines, line => String(RUNS[line.run].settings[view.group]));
  return [...groups].map(([value, members]) => {
    const sums = new Map();
    members.forEach(line => line.x.forEach((x, n) => sums.set(x, [...(sums.get(x) || []), line.y[n]])));
    const points = [...sums].filter(([, ys]) => ys.length === members.length && !ys.includes(null)).sort(([a], [b]) => a - b);
    const name = `${view.group.replaceAll("_", " ")} = ${value}, mean of ${members.length}`;
    const mean = ys => ys.reduce((a, b) => a + b, 0) / ys.length;
    return { ...members[0], name, x: points.map(([x]) => x), y: points.map(([, ys]) => mean(ys)), low: [], high: [], seeds: {}, lost: null };
  });
}

/** The lines of a chart that the selection shows, on the chosen axis. */
function chosenLines(chart) {
  let lines = chart.lines.filter(line => line.run < 0 || isShown(RUNS[line.run]));
  if (chart.frontier) lines = lines.map(line => line.run < 0 ? frontier(line, lines.filter(other => other.run >= 0), chart.frontier === "highest") : line);
  if (chart.x.form === "round" && view.x !== "round") lines = lines.map(onChosenAxis).filter(Boolean);
  return view.group && view.mean && chart.x.form === "round" ? groupMeans(lines) : lines;
}

function curves(chart, state, theme) {
  const lines = chosenLines(chart), many = lines.length > MANY, zoom = state.zoom || {}, cut = cutOff(chart, lines);
  const single = many ? lines.filter(line => line.run < 0 || view.pinned.has(RUNS[line.run].id)) : lines;
  const bundles = many ? [...Map.groupBy(lines.filter(line => !single.includes(line)), line => colour(line.run)).values()] : [];
  const soft = values => state.beta ? average(values, state.beta) : values;
  let xs = lines.flatMap(line => line.x), ys = lines.flatMap(line => line.y);
  if (chart.diagonal) xs = ys = [...xs, ...ys];
  const seeds = state.seeds ? single.flatMap(line => Object.values(line.seeds).map(y => faint(line, soft(y), "seed"))) : [];
  const data = [
    ...bundles.map(group => bundle(group, soft, Math.ceil(xs.length / POINTS))),
    ...single.filter(line => line.low.length && !state.seeds && !(line.lost && "clipmax" in cut)).map(line => band(line, soft)), // before the lines, which they must not cover
    ...(chart.diagonal ? [diagonal(xs, theme)] : []),
    ...(state.beta && !many ? single.filter(line => !line.marks).map(line => faint(line, line.y, "raw")) : []),
    ...seeds,
    ...single.map(line => stroke(line, soft, chart.frontier && line.run < 0 ? "hv" : "linear")),
    ...losses(lines, soft, cut),
  ];
  const hovermode = lines.length > FEW || lines.some(line => line.marks) ? "closest" : "x unified";
  const x = chart.x.form === "round" && XS[view.x] || chart.x;
  return [{ data, bundles, layout: frame(theme, {
    hovermode, annotations: neverFinite(lines), xaxis: axis(x, theme, xs, zoom[view.x]), yaxis: { ...axis(chart.y, theme, ys, zoom.y), autorangeoptions: cut },
  }) }];
}
