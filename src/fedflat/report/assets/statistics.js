// Statistics of the selected runs, as significance.py and comparison_charts.py compute them of all: t-tests over seeds, what
// is significantly the best, who wins against whom, rank correlations, and the Pareto frontier.
const LEVEL = .05, LEAST_POINTS = 5;

/** ln Γ(x) for x > 0: Stirling's series, after x has been moved to where it is exact to 11 digits. */
function logGamma(x) {
  let shift = 0;
  for (; x < 12; x++) shift += Math.log(x);
  return (x - .5) * Math.log(x) - x + .5 * Math.log(2 * Math.PI) + 1 / (12 * x) - 1 / (360 * x ** 3) + 1 / (1260 * x ** 5) - shift;
}

/** The regularised incomplete beta function I_x(a, b), by its continued fraction, evaluated from the front. */
function incompleteBeta(x, a, b) {
  if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - incompleteBeta(1 - x, b, a);
  const safe = value => Math.abs(value) < 1e-300 ? 1e-300 : value;
  let above = 1, below = 1 / safe(1 - (a + b) * x / (a + 1)), sum = below;
  for (let n = 1; n < 500; n++) {
    const even = n * (b - n) * x / ((a + 2 * n - 1) * (a + 2 * n)), odd = -(a + n) * (a + b + n) * x / ((a + 2 * n) * (a + 2 * n + 1));
    let factor = 1;
    for (const term of [even, odd]) {
      below = 1 / safe(1 + term * below);
      above = safe(1 + term / above);
      factor *= below * above;
    }
    sum *= factor;
    if (Math.abs(factor - 1) < 1e-14) break;
  }
  return sum * Math.exp(a * Math.log(x) + b * Math.log1p(-x) + logGamma(a + b) - logGamma(a) - logGamma(b)) / a;
}

const variance = values => spread(values) ** 2;

/** p of a two-sided t-test of values by seed: paired over the seeds that both have, Welch's if these are fewer than two. */
function differenceP(one, other) {
  const shared = Object.keys(one).filter(seed => seed in other);
  let t, freedom;
  if (shared.length > 1) {
    const differences = shared.map(seed => one[seed] - other[seed]);
    [t, freedom] = [mean(differences) / Math.sqrt(variance(differences) / shared.length), shared.length - 1];
  } else {
    const [a, b] = [Object.values(one), Object.values(other)], [u, v] = [variance(a) / a.length, variance(b) / b.length];
    [t, freedom] = [(mean(a) - mean(b)) / Math.sqrt(u + v), (u + v) ** 2 / (u ** 2 / (a.length - 1) + v ** 2 / (b.length - 1))];
  }
  if (Number.isNaN(t)) return 1; // 0 / 0: no difference at all
  return Number.isFinite(t) ? incompleteBeta(freedom / (freedom + t * t), freedom / 2, .5) : 0;
}

/** For each run "best", "tied" or "": the significantly best of those with several seeds. */
function markBest(values, higher) {
  const marks = values.map(() => ""), judged = [...values.keys()].filter(n => Object.keys(values[n]).length > 1), sign = higher ? 1 : -1;
  if (judged.length < 2) return marks;
  const score = n => sign * mean(Object.values(values[n])), first = judged.reduce((a, b) => score(b) > score(a) ? b : a);
  const tied = judged.filter(n => n !== first && differenceP(values[first], values[n]) >= LEVEL);
  [first, ...tied].forEach(n => { marks[n] = tied.length ? "tied" : "best"; });
  return marks;
}

/** Mark the best of the selected runs in the tables; a group of comparable runs whose selection is as before stays as it is. */
function followMarks() {
  JUDGED.forEach(column => column.groups.forEach(group => {
    const members = Object.keys(group.values).filter(n => isShown(RUNS[n])), chosen = members.join();
    if (group.chosen === chosen) return;
    group.chosen = chosen;
    const marks = markBest(members.map(n => group.values[n]), column.higher), table = document.getElementById(column.table);
    const place = [...table.tHead.rows[0].cells].findIndex(cell => cell.textContent.trim() === column.heading);
    members.forEach((n, k) => {
      const cell = table.querySelector(`tr[data-run="${n}"]`).cells[place], text = cell.textContent.replace(/^≈ /, "");
      cell.className = marks[k];
      cell.textContent = (marks[k] === "tied" ? "≈ " : "") + text;
    });
  }));
}

/** 1 if `run` is significantly better than `other`, -1 if it is worse, 0 if neither, null if nobody can tell. Tests are kept. */
const outcomes = new Map();
function outcome(run, other) {
  const key = `${run.id} ${other.id}`;
  if (!outcomes.has(key)) outcomes.set(key, compareRuns(run.rivalry, other.rivalry));
  return outcomes.get(key);
}
function compareRuns(a, b) {
  if (Math.min(Object.keys(a.values).length, Object.keys(b.values).length) < 2) return null;
  if (a.diverged || b.diverged) return Number(b.diverged) - Number(a.diverged);
  if (differenceP(a.values, b.values) >= LEVEL) return 0;
  return a.sign * (mean(Object.values(a.values)) - mean(Object.values(b.values))) > 0 ? 1 : -1;
}

/** The matrix of wins of the selected runs' methods, as win_chart makes it of all. */
function winGrid(grid) {
  const runs = shownRuns(), methods = [...new Set(runs.filter(run => Object.keys(run.rivalry.values).length > 1).map(run => run.rivalry.method))];
  const record = (a, b) => {
    const found = [];
    for (const one of runs) if (one.rivalry.method === a) for (const two of runs)
      if (two.rivalry.method === b && two.rivalry.group === one.rivalry.group) found.push(outcome(one, two));
    return [1, 0, -1].map(result => found.filter(each => each === result).length);
  };
  const records = methods.map(a => methods.map(b => a === b ? [0, 0, 0] : record(a, b))), total = ([won, tied, lost]) => won + tied + lost;
  const z = records.map(row => row.map(each => total(each) ? (each[0] - each[2]) / total(each) : null));
  const places = [...methods.keys()], text = records.map(row => row.map(each => total(each) ? each.join("–") : ""));
  return { ...grid, x: places, y: places, z, text, x_names: methods, y_names: methods };
}

/** A matrix with a row and a column for each run, of the selected runs alone. */
function selectedRows(grid) {
  const kept = [...grid.members.keys()].filter(n => isShown(RUNS[grid.members[n]])), pick = list => kept.map(n => list[n]);
  const names = pick(grid.x_names), places = [...names.keys()];
  return { ...grid, x: places, y: places, x_names: names, y_names: names, z: pick(grid.z).map(pick), text: pick(grid.text).map(pick) };
}

/** The ranks of values, from 1; equal values share the mean of theirs. */
function ranks(values) {
  const order = [...values.keys()].sort((a, b) => values[a] - values[b]), found = [];
  for (let first = 0, end; first < order.length; first = end) {
    for (end = first + 1; end < order.length && values[order[end]] === values[order[first]];) end++;
    for (let n = first; n < end; n++) found[order[n]] = (first + end + 1) / 2;
  }
  return found;
}

/** Spearman's rank correlation. */
function spearman(x, y) {
  const [a, b] = [ranks(x), ranks(y)], [p, q] = [mean(a), mean(b)], sum = (u, v, m, k) => u.reduce((total, each, n) => total + (each - m) * (v[n] - k), 0);
  return sum(a, b, p, q) / Math.sqrt(sum(a, a, p, p) * sum(b, b, q, q));
}

/** The rank correlation of the selected points with its 95 % interval, in the words of rank_correlation_text. */
function correlationText(lines) {
  const x = lines.flatMap(line => line.x), y = lines.flatMap(line => line.y), signed = value => `${value < 0 ? "-" : "+"}${Math.abs(value).toFixed(2)}`;
  if (x.length < LEAST_POINTS) return `${x.length} points are too few for a rank correlation.`;
  if (new Set(x).size === 1 || new Set(y).size === 1) return "There is no rank correlation: all values are equal.";
  const rho = spearman(x, y), found = `Spearman's rank correlation of all ${x.length} points is ${signed(rho)}`;
  if (Math.abs(rho) > 1 - 1e-12) return `${found}.`;
  const half = 1.96 * Math.sqrt((1 + rho ** 2 / 2) / (x.length - 3)), [low, high] = [-1, 1].map(sign => signed(Math.tanh(Math.atanh(rho) + sign * half)));
  return `${found} (95 % interval ${low} to ${high}). Seeds of a run are not independent.`;
}

/** The points (one of each line) that no other beats in both cost and metric. */
function frontier(line, others, higher) {
  const sign = higher ? 1 : -1, best = [], points = others.map(({ x: [x], y: [y] }) => [x, y]).sort((a, b) => a[0] - b[0] || sign * (b[1] - a[1]));
  points.forEach(([x, y]) => { if (!best.length || sign * y > sign * best.at(-1)[1]) best.push([x, y]); });
  return { ...line, x: best.map(([x]) => x), y: best.map(([, y]) => y) };
}
