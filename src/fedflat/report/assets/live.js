// A page served by fedflat watch asks for changes every few seconds and takes them over without losing the view.
const PAUSE = 3000; // milliseconds between questions
let version = "", dragging = false;
addEventListener("pointerdown", () => { dragging = true; });
addEventListener("pointerup", () => { dragging = false; });

/** Scroll so that the first figure or section on the screen stays where it is while `change` alters what is above it. */
function keepPlace(change) {
  const place = element => element.getBoundingClientRect(), head = place(document.querySelector("header")).bottom, top = scrollY;
  const first = top ? [...document.querySelectorAll("main :is(section, figure)")].findLast(box => place(box).top <= head + 20 && place(box).bottom > head) : null;
  const before = first && place(first).top;
  change();
  const again = first && document.getElementById(first.id);
  scrollTo(0, again ? scrollY + place(again).top - before : top);
}

/** Replace the parts of the page that depend on the runs; selection, zoom, cameras and scrolling stay as they are. */
function takeOver(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  const open = new Set([...document.querySelectorAll("main details[open] summary")].map(summary => summary.textContent));
  CHARTS.flatMap(plots).filter(plot => plot.data).forEach(plot => Plotly.purge(plot));
  for (const part of ["h1", "nav", "main"]) document.querySelector(part).replaceWith(fresh.querySelector(part));
  document.querySelectorAll("main details").forEach(details => { details.open = open.has(details.querySelector("summary").textContent); });
  document.title = fresh.title;
  outcomes.clear();
  boot();
}

/** Ask the server for changes; the dot in the header is red while it does not answer. */
async function ask() {
  const light = document.querySelector(".live");
  try {
    const words = new URLSearchParams(location.search);
    words.set("version", version);
    const found = await (await fetch(`update?${words}`)).json();
    if (found.html && version && !dragging) keepPlace(() => takeOver(found.html));
    if (!dragging) version = found.version;
    light.classList.remove("stale");
  } catch {
    light.classList.add("stale");
  }
  setTimeout(ask, PAUSE);
}
if (document.querySelector(".live")) ask();
