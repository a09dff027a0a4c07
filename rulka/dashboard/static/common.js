// What all pages share: asking the server, colours for charts.

/** Returns JSON; where the server says what is wrong, shows that in `place` and returns null. */
export async function ask(address, place) {
  const lost = document.getElementById("lost");
  let answer;
  try { answer = await fetch(address); } catch { lost.hidden = false; return null; }
  lost.hidden = true;
  if (answer.ok) return answer.json();
  const problem = await answer.json();
  const box = document.createElement("div"), text = document.createElement("p"), hint = document.createElement("p");
  box.className = "problem"; hint.className = "hint"; text.textContent = problem.text;
  hint.append(...problem.hint.split("`").map((part, k) => k % 2 ? Object.assign(document.createElement("code"), { textContent: part }) : part));
  box.append(text, hint); place.replaceChildren(box);
  return null;
}

/** Calls `then` again and again, `seconds` after it was done, while the page is seen. */
export async function repeat(seconds, then) {
  for (;;) {
    await new Promise(done => { setTimeout(done, 1000 * seconds); });
    if (!document.hidden) await then();
  }
}

/** Text for plotly, which reads tags and entities in it. */
export const literal = text => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

export const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Okabe and Ito's hues; contestants have the report's (laps.py); beyond them the same ones dashed.
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
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",  // a finger scrolls the page
    uirevision: "kept", ...more,
    xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis } };
}
export const CONFIG = { displayModeBar: false, responsive: true, showTips: false };

/** Loads plotly once, after everything else of the page is there. */
let plotly = null;
export function charts() {
  return plotly ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = "/static/plotly.min.js";
    script.onload = () => done(window.Plotly); script.onerror = failed;
    document.head.append(script);
  });
}
