// What is drawn without plotly, many times a second or by the dozen: the track with its cars, small curves, numbers.

export const NUMBERS = [["env_steps", "environment steps", 0], ["env_steps_per_s", "steps a second", 0], ["finish_rate", "races finished", "%"],
  ["record_s", "record, s", 2], ["mean_progress_m", "mean progress, m", 0], ["learner_busy_share", "learner busy", "%"],
  ["versions_behind", "versions behind", 1], ["minutes", "minutes", 1]];
export const GROUPS = [["Races", ["finish_rate", "mean_return", "mean_progress_m", "record_s", "best_training_time_s", "check_finish_rate", "check_mean_time_s", "check_mean_return"]],
  ["Performance", ["env_steps_per_s", "samples_learned_per_s", "fresh_samples_per_s", "freshness", "versions_behind", "blocks_mb_per_s", "weights_mb_per_s", "blocks_under_way", "blocks_ready", "num_restarts"]],
  ["Time, learner", ["learner_busy_share", "learner_cpu_share", "learner_waiting_share", "learner_checking_share", "learner_saving_share"]],
  ["Time, collectors", ["collectors_simulating_share", "collectors_acting_share", "collectors_waiting_share", "collectors_loading_share"]]];
const HIDDEN = new Set(["minutes", "cpu_minutes", "version", "gradient_steps", "num_races", "num_decisions", "most_versions_behind", "check_mean_progress_m", "num_samples",
  "learner_inserting_share", "learner_updating_share", "learner_publishing_share", "learner_reporting_share"]);

const DASH = "\u2013";
export function show(value, digits) {
  if (value === undefined || value === null) return DASH;
  if (digits === "%") return (100 * value).toFixed(0) + "\u00a0%";
  if (digits !== undefined) return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 1e6) ? value.toExponential(2) : value.toLocaleString("en", { maximumSignificantDigits: 4 });
}
export const words = name => name.replaceAll("_", " ");

const make = (name, attributes) => { const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const k in attributes) e.setAttribute(k, attributes[k]); return e; };
const element = (name, text, css) => { const e = document.createElement(name); if (text !== undefined) e.textContent = text; if (css) e.className = css; return e; };
const path = points => points.map((p, k) => (k ? "L" : "M") + p[0] + " " + p[1]).join("");

/** The track from above, to scale, and cars on it; places are metres, right and down. */
export class TrackMap {
  constructor(svg, track) {
    this.svg = svg; svg.replaceChildren();
    this.dots = make("g", {}); this.driven = make("g", {}); this.pool = [];
    if (!track.left.length) return;
    const all = [...track.left, ...track.right];
    const low = [0, 1].map(k => Math.min(...all.map(p => p[k]))), high = [0, 1].map(k => Math.max(...all.map(p => p[k])));
    const margin = 0.03 * Math.max(high[0] - low[0], high[1] - low[1]) + 4;
    this.width = high[0] - low[0] + 2 * margin;
    svg.setAttribute("viewBox", `${low[0] - margin} ${low[1] - margin} ${this.width} ${high[1] - low[1] + 2 * margin}`);
    const thin = { "vector-effect": "non-scaling-stroke", fill: "none" };
    // In pieces, so that where the road crosses itself the later piece lies on top, with its edges.
    for (let k = 0; k < track.left.length - 1; k += 12) {
      const left = track.left.slice(k, k + 13), right = track.right.slice(k, k + 13);
      svg.append(make("path", { d: path([...left, ...right.toReversed()]) + "Z", fill: "var(--road)", stroke: "var(--road)", "stroke-width": 1, "vector-effect": "non-scaling-stroke" }));
      for (const edge of [left, right]) svg.append(make("path", { ...thin, d: path(edge), stroke: "var(--edge)", "stroke-width": 1.2 }));
    }
    track.gates.forEach((gate, k) => svg.append(make("path", { ...thin, d: path(gate), "stroke-width": k && k < track.gates.length - 1 ? 1.6 : 4,
      stroke: k === 0 ? "var(--good)" : k === track.gates.length - 1 ? "var(--ink)" : "var(--soft)" })));
    svg.append(this.driven, this.dots);
  }
  /** Driven lines [[x, y], ...], each with its colour. */
  lines(all, colours) {
    this.driven.replaceChildren(...all.map((points, k) => make("path", { d: path(points), fill: "none", stroke: colours[k], "stroke-opacity": 0.6,
      "stroke-width": 1.4, "vector-effect": "non-scaling-stroke" })));
  }
  /** Cars [[x, y, ...], ...], each with a colour of its own where `colours` has one. */
  draw(cars, colours = null, size = 1) {
    if (!this.width) return;
    const shown = this.svg.clientWidth || 600;
    const r = size * Math.max(1.1, 3.4 * this.width / shown);  // a car's length, or what can be seen
    while (this.pool.length < cars.length) { const dot = make("circle", {}); this.pool.push(dot); this.dots.append(dot); }
    this.pool.forEach((dot, k) => {
      if (k >= cars.length) return dot.setAttribute("visibility", "hidden");
      dot.setAttribute("visibility", "visible");
      dot.setAttribute("cx", cars[k][0]); dot.setAttribute("cy", cars[k][1]); dot.setAttribute("r", r);
      dot.setAttribute("fill", colours ? colours[k] : "var(--car)"); dot.setAttribute("fill-opacity", colours ? 1 : 0.72);
    });
  }
}

export function drawNumbers(list, latest) {
  list.replaceChildren(...NUMBERS.map(([name, label, digits]) => { const d = element("div");
    d.append(element("dt", label), element("dd", show(latest[name], digits))); return d; }));
}

function curve(name, points) {
  const card = element("div", undefined, "card"), head = element("h3");
  head.append(element("span", words(name)), element("b", show(points[points.length - 1][1])));
  const xs = points.map(p => p[0]), ys = points.map(p => p[1]);
  const x0 = xs[0], x1 = xs[xs.length - 1], low = Math.min(...ys), high = Math.max(...ys);
  const at = p => [(x1 > x0 ? (p[0] - x0) / (x1 - x0) : 1) * 240, 74 - (high > low ? (p[1] - low) / (high - low) : 0.5) * 64];
  const svg = make("svg", { viewBox: "0 0 240 96", class: "chart", role: "img", "aria-label": `${words(name)}, ${show(low)} to ${show(high)}` });
  for (const y of [10, 74]) svg.append(make("line", { x1: 0, x2: 240, y1: y, y2: y, stroke: "var(--line)" }));
  svg.append(make("polyline", { points: points.map(p => at(p).map(v => v.toFixed(1)).join()).join(" "), fill: "none", stroke: "var(--accent)",
    "stroke-width": 1.8, "stroke-linejoin": "round" }));
  const [lx, ly] = at(points[points.length - 1]); svg.append(make("circle", { cx: lx, cy: ly, r: 2.6, fill: "var(--accent)" }));
  const text = (x, y, anchor, said) => { const t = make("text", { x, y, "text-anchor": anchor }); t.textContent = said; svg.append(t); };
  if (high > low) text(0, 8, "start", show(high));
  text(0, 88, "start", show(low)); text(240, 88, "end", `${show(x1, 0)} steps`);
  card.append(head, svg); return card;
}

export function drawCurves(place, curves) {
  const named = new Set(GROUPS.flatMap(g => g[1]));
  const rest = Object.keys(curves).filter(n => !named.has(n) && !HIDDEN.has(n));
  place.replaceChildren(...[...GROUPS, ["Learning", rest]].flatMap(([title, names]) => {
    const cards = names.filter(n => curves[n] && curves[n].length > 1).map(n => curve(n, curves[n]));
    if (!cards.length) return [];
    const grid = element("div", undefined, "grid"); grid.append(...cards); return [element("h2", title), grid]; }));
}
