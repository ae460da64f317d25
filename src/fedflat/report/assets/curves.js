// Charts of lines (Curves in charts.py). A line is a ChartLine; soft(values) smooths values or returns them as they are.

/** Exponential moving average: s = β s + (1 - β) y, divided by 1 - βⁿ so that it starts at y. */
function average(values, beta) {
  let sum = 0, weight = 0;
  return values.map(y => {
    sum = beta * sum + (1 - beta) * y;
    weight = beta * weight + 1 - beta;
    return sum / weight;
  });
}

const silent = { hoverinfo: "skip", showlegend: false };

/** The area between line.low and line.high. */
function band(line, soft) {
  const x = [...line.x, ...[...line.x].reverse()], y = [...soft(line.high), ...[...soft(line.low)].reverse()];
  return { x, y, mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: colour(line.colour) + "2b", ...silent };
}

/** The line before smoothing, drawn faintly. */
function faint(line) {
  const thin = { color: colour(line.colour), width: 1 };
  return { x: line.x, y: line.y, mode: "lines", line: thin, opacity: .3, meta: "raw", ...silent };
}

/** The line itself, or its markers. */
function stroke(line, soft) {
  return {
    x: line.x, y: soft(line.y), name: plain(line.name), meta: "line", mode: line.marks ? "markers" : "lines",
    line: { color: colour(line.colour), width: 2, dash: strokes(line, 2) || "solid" },
    marker: { color: colour(line.colour), symbol: symbol(line)[0], size: 8, opacity: .8 },
  };
}

/** The line y = x across all points. */
function diagonal(values, theme) {
  const positive = values.filter(v => v > 0), ends = [Math.min(...positive), Math.max(...positive)];
  return { x: ends, y: ends, mode: "lines", line: { color: theme.soft, width: 1, dash: "dot" }, ...silent };
}

function curves(chart, state, theme) {
  const shown = chart.lines.filter((_, n) => !state.hidden.has(n));
  const soft = values => state.beta ? average(values, state.beta) : values;
  let xs = shown.flatMap(line => line.x), ys = shown.flatMap(line => line.y);
  if (chart.diagonal) xs = ys = [...xs, ...ys];
  const data = [
    ...shown.filter(line => line.low.length).map(line => band(line, soft)), // first, so that bands do not cover lines
    ...(chart.diagonal ? [diagonal(xs, theme)] : []),
    ...(state.beta ? shown.map(faint) : []),
    ...shown.map(line => stroke(line, soft)),
  ];
  const hovermode = chart.lines.some(line => line.marks) ? "closest" : "x unified";
  return [{ data, layout: frame(theme, { hovermode, xaxis: axis(chart.x, theme, xs), yaxis: axis(chart.y, theme, ys) }) }];
}
