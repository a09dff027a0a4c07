// What all pages share: being told what is new, parts that are loaded after the page, colours for charts.

const listeners = {};
const channel = new BroadcastChannel("rulka");
let source = null, release = null, waiting = null;

/** Calls `then(value)` at each event of a name; see rulka/dashboard/events.py. */
export function onEvent(name, then) { (listeners[name] ??= []).push(then); }

function tell(name, value) { for (const then of listeners[name] ?? []) then(value); }
function pass(name, value) { tell(name, value); channel.postMessage([name, value]); }
channel.onmessage = event => tell(...event.data);

// One page listens for all: a browser opens six connections to a server at most, and a seventh page would wait for ever.
// Pages that nobody sees neither listen nor draw.
function listen() {
  if (waiting) return;
  waiting = new AbortController();
  navigator.locks.request("rulka-events", { signal: waiting.signal }, () => new Promise(done => {
    release = done;
    source = new EventSource("/events");
    for (const name of ["training", "ended", "changed"]) source.addEventListener(name, event => pass(name, JSON.parse(event.data)));
    source.onopen = () => pass("connection", true);
    source.onerror = () => pass("connection", false);
  })).catch(error => { if (error.name !== "AbortError") throw error; });
}

function rest() {
  source?.close(); release?.(); waiting?.abort();
  source = release = waiting = null;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return rest();
  listen(); loadParts();
});
addEventListener("pagehide", rest);
addEventListener("pageshow", event => { if (event.persisted) listen(); });
if (!document.hidden) listen();

onEvent("connection", is => { document.getElementById("lost").hidden = is; });

// Parts: <section data-part="address" data-of="paths that it shows" data-every="seconds">
const parts = [...document.querySelectorAll("[data-part]")];
async function load(part) {
  try {
    const answer = await fetch(part.dataset.part);
    part.innerHTML = await answer.text();  // the server has escaped what stands in it
  } catch { /* "connection" says so */ }
}
export function loadParts() { parts.forEach(load); }
for (const part of parts) {
  load(part);
  if (part.dataset.every) setInterval(() => { if (!document.hidden) load(part); }, 1000 * part.dataset.every);
}
const shows = (element, changed) => changed.some(path => (element.dataset.of ?? "").split(" ").includes(path));
onEvent("changed", changed => {
  parts.filter(part => shows(part, changed)).forEach(load);
  if (shows(document.body, changed)) document.getElementById("news").hidden = false;
});
document.getElementById("news").querySelector("button").onclick = () => location.reload();

/** Returns JSON; where the server says what is wrong, shows that in `place` and returns null. */
export async function ask(address, place) {
  let answer;
  try { answer = await fetch(address); } catch { return null; }
  if (answer.ok) return answer.json();
  const problem = await answer.json();
  const box = document.createElement("div"), text = document.createElement("p"), hint = document.createElement("p");
  box.className = "problem"; hint.className = "hint"; text.textContent = problem.text; hint.textContent = problem.hint;
  box.append(text, hint); place.replaceChildren(box);
  return null;
}

export const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Okabe and Ito's hues, as in the report; beyond them the same ones dashed.
const HUES = { light: ["#0072b2", "#d55e00", "#00835f", "#b0578d", "#8a6d00", "#3f8fbf", "#5d6673"],
  dark: ["#56b4e9", "#f08c3c", "#2fc39a", "#dd8fbd", "#e6c84a", "#9cd0ef", "#9aa4b2"] };
const DASHES = ["solid", "dash", "dot", "dashdot"];
const dark = matchMedia("(prefers-color-scheme: dark)");
export const hue = k => HUES[dark.matches ? "dark" : "light"][k % 7];
export const dash = k => DASHES[Math.floor(k / 7) % 4];
export function onScheme(then) { dark.addEventListener("change", then); }

/** How plotly draws here. */
export function layout(more = {}) {
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), color: colour("--soft"),
    automargin: true, title: { standoff: 8 } };
  return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("--ink"), size: 12.5, family: "inherit" },
    margin: { l: 8, r: 12, t: 8, b: 8 }, showlegend: false, hovermode: "closest",
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",  // a finger scrolls the page uirevision: "kept", ...more,
    xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis } };
}
export const CONFIG = { displayModeBar: false, responsive: true, showTips: false };

/** Loads plotly once, after everything else of the page is there. */
let plotly = null;
export function charts() {
  return plotly ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = document.body.dataset.plotly;
    script.onload = () => done(window.Plotly); script.onerror = failed;
    document.head.append(script);
  });
}
