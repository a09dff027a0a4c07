// Learning curves of all trainings, one number a chart.
import { CONFIG, ask, charts, dash, hue, layout, literal, onScheme, repeat } from "./common.js";

const axis = document.getElementById("axis"), rows = [...document.querySelectorAll("tr[data-key]")];
const order = rows.map(row => row.dataset.key).toReversed();  // the oldest first, so that colours stay when one is added
const label = Object.fromEntries(rows.map(row => [row.dataset.key, row.dataset.label]));
const isShown = key => document.getElementById(`show-${order.length - 1 - order.indexOf(key)}`)?.checked ?? false;
const panels = [...document.querySelectorAll("[data-chart]")].map(place => ({ place, choice: document.getElementById(place.dataset.chart), curves: [] }));
const RATES = /share|rate$/;

function colours() {
  rows.forEach(row => row.style.setProperty("--own", hue(order.indexOf(row.dataset.key))));
}

async function draw(panel) {
  const Plotly = await charts(), name = panel.choice.value, { text, dataset } = panel.choice.selectedOptions[0];
  const traces = panel.curves.filter(curve => isShown(curve.key)).map(curve => {
    const k = order.indexOf(curve.key);
    return { x: curve.x, y: curve.y, name: literal(label[curve.key]), mode: curve.x.length > 1 ? "lines" : "markers", line: { color: hue(k), width: 1.8, dash: dash(k) },
      hovertemplate: `%{y:.4~g}<br>%{x:.4~s} ${axis.selectedOptions[0].text}<extra>%{fullData.name}</extra>` };
  });
  const empty = traces.length ? [] : [{ text: "no training that is shown has this number", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }];
  if (!panel.place.querySelector(".plot-container")) panel.place.replaceChildren();
  await Plotly.react(panel.place, traces, layout({ annotations: empty, xaxis: { title: { text: axis.selectedOptions[0].text } },
    yaxis: { title: { text }, rangemode: RATES.test(name) ? "tozero" : "normal", tickformat: RATES.test(name) ? ".0%" : "" } }), CONFIG);
  panel.place.setAttribute("aria-label", `${text} of ${traces.length} trainings`);
  panel.place.nextElementSibling.textContent = dataset.about;
}

async function load(panel) {
  const found = await ask(`/curves.json?metric=${encodeURIComponent(panel.choice.value)}&axis=${axis.value}`, panel.place);
  if (!found) return;
  panel.curves = found; await draw(panel);
}

function remember() {
  const kept = new URLSearchParams({ axis: axis.value });
  panels.forEach(panel => kept.append("metric", panel.choice.value));
  order.filter(key => !isShown(key)).forEach(key => kept.append("hide", key));
  history.replaceState(null, "", `?${kept}`);
}

if (axis) {
  const kept = new URLSearchParams(location.search);
  if (kept.has("axis")) axis.value = kept.get("axis");
  kept.getAll("metric").forEach((name, k) => { if (panels[k] && [...panels[k].choice.options].some(o => o.value === name)) panels[k].choice.value = name; });
  kept.getAll("hide").filter(key => order.includes(key)).forEach(key => { document.getElementById(`show-${order.length - 1 - order.indexOf(key)}`).checked = false; });
  axis.onchange = () => { remember(); panels.forEach(load); };
  for (const panel of panels) panel.choice.onchange = () => { remember(); load(panel); };
  document.querySelectorAll("input[type=checkbox]").forEach(box => { box.onchange = () => { remember(); panels.forEach(draw); }; });
  onScheme(() => { colours(); panels.forEach(draw); });
  colours(); panels.forEach(load);
  if (rows.some(row => "running" in row.dataset)) repeat(5, () => Promise.all(panels.map(load)));
}
