// Laps on one track, moved by the clock of the page: from above as SVG, in three dimensions by plotly.
import { CONFIG, ask, charts, colour, dash, hue, layout, literal, onScheme } from "./common.js";
import { TrackMap, show } from "./draw.js";

const by = id => document.getElementById(id);
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
let data = null, map = null, now = 0, length = 1, playing = false, before = 0, isDeep = false, carsAt = -1, drawnDeep = 0;

const SECONDS = "\u00a0s";
const shown = () => data.laps.filter((_, k) => by(`lap-${k}`)?.checked);

/** The last sample at or before `value` in a rising list. */
function index(list, value) {
  let low = 0, high = list.length - 1;
  while (low < high) { const middle = (low + high + 1) >> 1; if (list[middle] <= value) low = middle; else high = middle - 1; }
  return low;
}
function between(from, to, value) {
  return name => {
    const k = index(from, value), next = Math.min(k + 1, from.length - 1);
    const share = from[next] > from[k] ? Math.min(Math.max((value - from[k]) / (from[next] - from[k]), 0), 1) : 0;
    return to[name][k] + share * (to[name][next] - to[name][k]);
  };
}
const at = (lap, t) => between(lap.path.t, lap.path, t);
/** When a lap had come so far, seconds; null where it never did. */
function whenAt(lap, metres) {
  const { along, t } = lap.path;
  if (metres > along[along.length - 1]) return null;
  return between(along, { t }, metres)("t");
}

function rows() {
  by("laps").replaceChildren(...data.laps.map((lap, k) => {
    const row = document.createElement("tr"), head = document.createElement("th"), label = document.createElement("label");
    const box = document.createElement("input"), swatch = document.createElement("span"), kind = document.createElement("small");
    box.type = "checkbox"; box.id = `lap-${k}`; box.checked = k < 6; box.onchange = () => { drawStill(); };
    swatch.className = "swatch"; row.style.setProperty("--own", hue(lap.hue)); kind.textContent = lap.kind; label.style.color = "inherit";
    label.append(box, " ", swatch, document.createTextNode(lap.label)); head.append(label, kind);
    const cells = [lap.time_s === null ? "did not finish" : show(lap.time_s, 2) + SECONDS, "", ""].map(text => {
      const cell = document.createElement("td"); cell.textContent = text; return cell; });
    row.append(head, ...cells); return row;
  }));
}

function places() { return shown().map(lap => { const p = at(lap, now); return [p("x"), p("y"), p("z")]; }); }
const colours = () => shown().map(lap => hue(lap.hue));

function drawNow() {
  const cars = places();
  by("clock").textContent = show(now, 2) + SECONDS;
  by("time").value = now; by("time").setAttribute("aria-valuetext", `${show(now, 1)} seconds`);
  document.documentElement.dataset.at = now.toFixed(2);
  data.laps.forEach((lap, k) => {
    const cells = by("laps").rows[k].cells, p = at(lap, now);
    cells[2].textContent = show(p("along"), 0) + "\u00a0m"; cells[3].textContent = show(3.6 * p("v"), 0) + "\u00a0km/h";
  });
  if (!isDeep) return map.draw(cars, colours(), 1.5);
  if (carsAt >= 0 && performance.now() - drawnDeep > 40) {
    drawnDeep = performance.now();
    window.Plotly.restyle(by("scene"), { x: [cars.map(c => c[0])], y: [cars.map(c => -c[1])], z: [cars.map(c => c[2] + 0.6)] }, [carsAt]);
  }
}

function drawStill() {
  drawNow(); drawGaps();
  if (isDeep) drawScene(); else paths();
}

function paths() {
  map.lines(shown().map(lap => lap.path.x.map((x, k) => [x, lap.path.y[k]])), colours());
}

async function drawScene() {
  const Plotly = await charts(), { left, right, gates } = data.track, n = left.length;
  // On the page y points down; in space a left turn must look left.
  const all = [...left, ...right], column = (points, k) => points.map(p => p === null ? null : k === 1 ? -p[1] : p[k]);
  const line = (points, style) => ({ type: "scatter3d", mode: "lines", x: column(points, 0), y: column(points, 1), z: column(points, 2), hoverinfo: "skip", ...style });
  const spans = [0, 1, 2].map(k => Math.max(...all.map(p => p[k])) - Math.min(...all.map(p => p[k])));
  const most = Math.max(spans[0], spans[1]), ratio = spans.map(span => Math.max(span / most, 0.002) * 1.7);
  const low = Array.from({ length: n - 1 }, (_, k) => k);
  const traces = [
    { type: "mesh3d", x: column(all, 0), y: column(all, 1), z: column(all, 2), i: [...low, ...low.map(k => k + 1)], j: [...low.map(k => k + n), ...low.map(k => k + n)],
      k: [...low.map(k => k + 1), ...low.map(k => k + n + 1)], intensity: column(all, 2), colorscale: [[0, colour("--road")], [1, spans[2] > 2 ? colour("--edge") : colour("--road")]],
      showscale: false, hoverinfo: "skip", lighting: { ambient: 1, diffuse: 0, specular: 0 } },
    line([...left, null, ...right], { line: { color: colour("--edge"), width: 2 } }),
    line(gates.flatMap(gate => [...gate, null]), { line: { color: colour("--soft"), width: 5 } }),
    ...shown().map(lap => { const p = lap.path;
      return { type: "scatter3d", mode: "lines", x: p.x, y: p.y.map(y => -y), z: p.z.map(z => z + 0.4), name: literal(lap.label), line: { color: hue(lap.hue), width: 3 }, opacity: 0.6, hoverinfo: "name" }; }),
  ];
  const cars = places();
  carsAt = traces.length;
  traces.push({ type: "scatter3d", mode: "markers", x: cars.map(c => c[0]), y: cars.map(c => -c[1]), z: cars.map(c => c[2] + 0.6), marker: { size: 7, color: colours(), line: { color: colour("--ink"), width: 1 } },
    text: shown().map(lap => literal(lap.label)), hoverinfo: "text" });
  const hidden = { visible: false, showspikes: false };
  await Plotly.react(by("scene"), traces, { ...layout(), margin: { l: 0, r: 0, t: 0, b: 0 }, dragmode: "turntable",
    scene: { aspectmode: "manual", aspectratio: { x: ratio[0], y: ratio[1], z: ratio[2] }, xaxis: hidden, yaxis: hidden, zaxis: hidden, camera: { eye: { x: 0, y: -0.75, z: 0.85 }, center: { x: 0, y: 0, z: -0.05 } }, dragmode: "turntable" } }, { ...CONFIG, scrollZoom: false });
}

async function drawGaps() {
  const Plotly = await charts(), finished = shown().filter(lap => lap.time_s !== null);
  const fastest = finished.toSorted((a, b) => a.time_s - b.time_s)[0];
  const metres = fastest ? Array.from({ length: 121 }, (_, k) => k / 120 * data.track.length_m) : [];
  const traces = fastest ? shown().map(lap => (
    { x: metres, y: metres.map(m => { const [ours, best] = [whenAt(lap, m), whenAt(fastest, m)]; return ours === null || best === null ? null : ours - best; }),
      name: literal(lap.label), mode: "lines", line: { color: hue(lap.hue), width: 1.8, dash: dash(lap.hue) }, hovertemplate: "%{y:+.2f} s at %{x:.0f} m<extra>%{fullData.name}</extra>" })) : [];
  await Plotly.react(by("gaps"), traces, layout({ xaxis: { title: { text: "metres along the track" } }, yaxis: { title: { text: "seconds behind" }, autorange: "reversed", zerolinecolor: colour("--edge") },
    annotations: fastest ? [] : [{ text: "no lap that is shown finished", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }] }), CONFIG);
}

function step(time) {
  if (!playing) return;
  now += (time - before) / 1000 * by("pace").value; before = time;
  if (now >= length) { now = length; play(false); }
  drawNow();
  if (playing) requestAnimationFrame(step);
}
function play(is) {
  if (is && now >= length) now = 0;
  playing = is; by("play").textContent = is ? "Pause" : "Play";
  if (is) { before = performance.now(); requestAnimationFrame(step); }
}

function view(deep) {
  isDeep = deep;
  by("flat").setAttribute("aria-pressed", !deep); by("deep").setAttribute("aria-pressed", deep);
  by("map").style.display = deep ? "none" : ""; by("scene").hidden = !deep;
  if (data) drawStill();
}

async function load() {
  play(false); now = 0; carsAt = -1;
  const found = await ask(`/laps.json?track=${encodeURIComponent(by("track").value)}`, by("problem"));
  if (!found) return;
  data = found; by("problem").replaceChildren();
  length = Math.max(...data.laps.map(lap => lap.path.t[lap.path.t.length - 1]));
  by("time").max = length;
  map = new TrackMap(by("map"), data.track);
  rows(); view(isDeep);
  if (!still) play(true);
}

if (by("track")) {
  const has3d = (() => { const canvas = document.createElement("canvas"); return Boolean(canvas.getContext("webgl2") ?? canvas.getContext("webgl")); })();
  if (!has3d) { by("deep").disabled = true; by("deep").title = "This browser has no WebGL"; }
  by("flat").onclick = () => view(false); by("deep").onclick = () => view(true);
  by("play").onclick = () => play(!playing);
  by("time").oninput = () => { play(false); now = Number(by("time").value); drawNow(); };
  by("track").onchange = load;
  addEventListener("keydown", event => {
    if (event.key === " " && !event.target.closest("button, select, input[type=checkbox], a")) { event.preventDefault(); play(!playing); }
  });
  document.addEventListener("visibilitychange", () => { if (document.hidden) play(false); });
  onScheme(() => { if (data) { [...by("laps").rows].forEach((row, k) => row.style.setProperty("--own", hue(data.laps[k].hue))); drawStill(); } });
  load();
}
