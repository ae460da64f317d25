// Save a chart as PNG and its numbers as CSV, without a server.

/** Download what the address `href` holds as a file `name`. */
function save(name, href) {
  const link = Object.assign(document.createElement("a"), { href, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

/** All numbers of a chart as rows; the first row names the columns. */
function rows(chart) {
  const blank = value => value ?? "";
  if (chart.lines) {
    const row = line => line.x.map((x, i) => [line.name, x, ...[line.y[i], line.low[i], line.high[i]].map(blank)]);
    return [["name", chart.x.label, chart.y.label, "low", "high"], ...chart.lines.flatMap(row)];
  }
  const row = grid => grid.y.flatMap((y, i) => grid.x.map((x, j) => [grid.name, x, y, blank(grid.z[i][j])]));
  const way = grid => grid.trajectories.flatMap(({ name, rounds, server, losses, clients }) => rounds.flatMap((round, n) => [
    [`${name}, server, round ${round}`, ...server[n], blank(losses[n])],
    ...clients[n].map(end => [`${name}, client, round ${round}`, ...end, ""]),
  ]));
  return [["name", chart.x.label, chart.y.label, chart.z.label], ...chart.grids.flatMap(grid => [...row(grid), ...way(grid)])];
}

function saveData(chart) {
  const quoted = cell => /[",\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : cell;
  const text = rows(chart).map(row => row.map(quoted).join(",")).join("\n") + "\n";
  save(`${chart.key}.csv`, URL.createObjectURL(new Blob([text], { type: "text/csv" })));
}

/** One panel as an image; `named` adds a legend. */
async function picture({ data, layout }, size, named) {
  const legend = { showlegend: named, legend: { orientation: "h", y: 1.02, yanchor: "bottom" } };
  const image = new Image();
  image.src = await Plotly.toImage({ data, layout: { ...layout, ...legend } }, { format: "png", scale: 2, ...size });
  await image.decode();
  return image;
}

/** Write names beside each other around a place, each in its colour. */
function heading(pen, names, middle, y) {
  const widths = names.map(([name]) => pen.measureText(`${name}   `).width);
  let x = middle - widths.reduce((a, b) => a + b, 0) / 2;
  names.forEach(([name, paint], n) => { pen.fillStyle = paint; pen.fillText(name, x, y); x += widths[n]; });
}

/** Save all panels as one picture at twice the screen's resolution, with their names or a legend. */
async function savePicture(chart) {
  const overlay = chart.relief && viewOf(chart) === "overlay", names = (chart.grids || [null]).map((grid, n) => {
    const named = grid ? namesIn(chart, n) : [];
    return named.length ? named.map(({ run, name }) => [name, colour(run)]) : [[grid?.name, colours().ink]];
  });
  const kept = panels(chart, true).map((panel, n) => [panel, names[n]]).filter(([panel]) => panel), drawn = kept.map(([panel]) => panel);
  const title = chart.grids ? 26 : 0, columns = Math.min(drawn.length, 3);
  const size = drawn.length > 1 ? { width: 460, height: 380 } : { width: 760, height: 460 };
  const wide = 2 * size.width, high = 2 * (size.height + title);
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
  Object.assign(canvas, { width: columns * wide, height: Math.ceil(drawn.length / columns) * high });
  pen.fillStyle = colours().paper;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.font = `600 ${overlay ? 20 : 28}px system-ui, sans-serif`;
  for (const [n, panel] of drawn.entries()) {
    const left = wide * (n % columns), top = high * Math.floor(n / columns);
    pen.drawImage(await picture(panel, size, !title && drawn[0].data.length <= 2 * MANY), left, top + 2 * title);
    if (title) heading(pen, kept[n][1], left + wide / 2, top + 36);
  }
  save(`${chart.key}.png`, canvas.toDataURL("image/png"));
}
