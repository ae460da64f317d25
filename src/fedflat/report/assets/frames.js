// Shared by all charts: colours, number formats, axes and layout.
const FORMS = {
  number: { tickformat: ",~g", hoverformat: ".4~g" },
  round: { tickformat: ",~g", hoverformat: ",~g" },
  percent: { tickformat: ".0%", hoverformat: ".2%" },
  bytes: { tickformat: "~s", ticksuffix: "B", hoverformat: ".4s" },
  seconds: { tickformat: ",~g", ticksuffix: " s", hoverformat: ",.1f" },
};
/** Escape & and <, which plotly would read as markup. */
const plain = text => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const CLEAR = "rgba(0,0,0,0)";
const symbol = line => STYLES.symbols[line.dash % STYLES.symbols.length];
/** The dashes of a line of this width, as plotly and SVG write them: "7.4px,3.2px". */
const strokes = (line, width) => STYLES.dashes[line.dash % STYLES.dashes.length].map(length => `${width * length}px`).join();
/** A colour scale with these colours at equal distances. */
const even = colours => colours.map((c, i) => [i / (colours.length - 1), c]);

const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : system.matches;
};

/** The theme's colours by name, as page.css has them; read again only when the theme has changed. */
function colours() {
  const dark = isDark();
  if (colours.dark === dark) return colours.found;
  const names = ["ink", "soft", "paper", "line", "panel", "low", "high", "warm"], probe = document.body.appendChild(document.createElement("i"));
  const found = names.map(name => { probe.style.color = `var(--${name})`; return [name, getComputedStyle(probe).color]; });
  probe.remove();
  [colours.dark, colours.found] = [dark, Object.fromEntries(found)];
  return colours.found;
}

/** Label only powers of ten if a logarithmic axis spans several, else 1, 2, 5, 10 and so on if it spans one. */
function decades(values) {
  const logs = values.filter(v => v > 0).map(Math.log10);
  const span = Math.max(...logs) - Math.min(...logs);
  if (span > .7 && span <= 2.5) return { dtick: "D2" };
  return span > 2.5 ? { dtick: Math.ceil(span / 6), tickformat: "", exponentformat: "power" } : {};
}

/** Plotly's settings of an Axis of charts.py; `range` is what the reader has zoomed to, if anything. */
function axis(a, theme, values = [], range = undefined) {
  return {
    title: { text: plain(a.label), standoff: 6 }, type: a.log ? "log" : "linear", automargin: true,
    gridcolor: theme.line, zerolinecolor: theme.line, linecolor: theme.line,
    ...FORMS[a.form], ...(a.log ? decades(values) : {}), ...(range ? { range: [...range], autorange: false } : { autorange: true }),
  };
}

/** The layout of a plot: that of all charts, and `more`. */
function frame(theme, more) {
  return {
    paper_bgcolor: CLEAR, plot_bgcolor: CLEAR, margin: { l: 56, r: 12, t: 8, b: 44 }, showlegend: false,
    font: { color: theme.ink, size: 12, family: "system-ui, sans-serif" },
    hoverlabel: { bgcolor: theme.panel, bordercolor: theme.line, font: { color: theme.ink }, namelength: -1 },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // on touch screens dragging scrolls the page
    ...more,
  };
}
