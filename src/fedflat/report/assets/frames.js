// Shared by all charts: colours, number formats, axes and layout.
const FORMS = {
  number: {},
  percent: { tickformat: ".0%", hoverformat: ".2%" },
  bytes: { tickformat: "~s", ticksuffix: "B", hoverformat: ".4s" },
};
/** Escape & and <, which plotly would read as markup. */
const plain = text => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const CLEAR = "rgba(0,0,0,0)";
const colour = number => COLOURS[number % COLOURS.length];
const symbol = line => SYMBOLS[line.dash % SYMBOLS.length];
/** The dashes of a line of this width, as plotly and SVG write them: "7.4px,3.2px". */
const strokes = (line, width) => DASHES[line.dash % DASHES.length].map(length => `${width * length}px`).join();
/** A colour scale with these colours at equal distances. */
const even = colours => colours.map((c, i) => [i / (colours.length - 1), c]);

/** The current value of a colour of page.css, which depends on the light or dark theme. */
function css(name) {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** The theme's colours by name. */
function colours() {
  const names = ["ink", "soft", "paper", "line", "panel", "low", "high"];
  return Object.fromEntries(names.map(name => [name, css(`--${name}`)]));
}

/** Label only powers of ten if a logarithmic axis spans several. */
function decades(values) {
  const logs = values.filter(v => v > 0).map(Math.log10);
  const span = Math.max(...logs) - Math.min(...logs);
  return span > 1.5 ? { dtick: Math.ceil(span / 6) } : {};
}

/** Plotly's settings of an Axis of charts.py. */
function axis(a, theme, values = []) {
  return {
    title: { text: plain(a.label), standoff: 6 }, type: a.log ? "log" : "linear", automargin: true, exponentformat: "power",
    gridcolor: theme.line, zerolinecolor: theme.line, linecolor: theme.line,
    ...FORMS[a.form], ...(a.log ? decades(values) : {}),
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
