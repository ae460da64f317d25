// What the reader has chosen, and the page's address, which holds it: whoever opens the address sees the same view.

/** Selection, filter, colours, axis, theme, and per chart what differs from the start (smoothing, zoom, camera, …). */
const view = { filter: "", hidden: new Set(), pinned: new Set(), group: "", mean: false, x: "round", theme: "", at: "", charts: {}, sweep: {} };

/** The choices of one chart, which are stored as they are changed. */
const choices = key => view.charts[key] ??= {};

/** Take over into `zoom` what the reader zoomed to, as plotly tells it: {[x]: [low, high], y: [low, high]}. */
function storeZoom(zoom, change, x) {
  const range = name => change[`${name}.range`] || (`${name}.range[0]` in change ? [change[`${name}.range[0]`], change[`${name}.range[1]`]] : null);
  for (const [name, key] of [["xaxis", x], ["yaxis", "y"]]) {
    if (range(name)) zoom[key] = range(name);
    if (change[`${name}.autorange`]) delete zoom[key];
  }
}

/** Read the view from the address. */
function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1)), list = name => (words.get(name) || "").split(",").filter(Boolean);
  const json = name => { try { return JSON.parse(words.get(name)) || {}; } catch { return {}; } };
  Object.assign(view, {
    filter: words.get("filter") || "", group: words.get("group") || "", mean: words.has("mean"),
    x: words.get("x") || "round", theme: words.get("theme") || "", at: words.get("at") || "",
    pinned: new Set(list("pin")), charts: json("charts"), sweep: json("sweep"),
    hidden: words.has("show") ? new Set(RUNS.map(run => run.id).filter(id => !list("show").includes(id))) : new Set(list("hide")),
  });
}

/** Write the view into the address, without an entry in the browser's history. */
function writeAddress() {
  const shown = RUNS.map(run => run.id).filter(id => !view.hidden.has(id)), hidden = [...view.hidden];
  const charts = Object.fromEntries(Object.entries(view.charts).filter(([, chosen]) => Object.keys(chosen).length));
  const selection = hidden.length > shown.length ? { show: shown.join() } : { hide: hidden.join() };
  const all = {
    filter: view.filter, ...selection, pin: [...view.pinned].join(), group: view.group, mean: view.mean ? "1" : "",
    x: view.x === "round" ? "" : view.x, theme: view.theme, at: view.at,
    charts: Object.keys(charts).length ? JSON.stringify(charts) : "",
    sweep: Object.keys(view.sweep).length ? JSON.stringify(view.sweep) : "",
  };
  const words = new URLSearchParams(Object.entries(all).filter(([name, value]) => value || (name === "show" && hidden.length)));
  history.replaceState(null, "", `${location.pathname}${location.search}${words.size ? `#${words}` : ""}`);
}
