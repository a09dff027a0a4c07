// The live page: cars on the track, numbers, and curves that grow.
import { ask, repeat } from "./common.js";
import { TrackMap, drawCurves, drawNumbers } from "./draw.js";

const by = id => document.getElementById(id);
const choice = by("choice");
let run = null, map = null, drawn = 0;
const MOST_POINTS = 480;

function state() {
  by("state").className = run.is_running ? "on" : "note";
  by("state-text").textContent = run.is_running ? "at work" : "not at work";
  by("damaged").hidden = !run.num_damaged;
  by("damaged").textContent = `${run.num_damaged} damaged lines of its metrics are left out.`;
  const speed = run.cars.reduce((sum, car) => sum + car[2], 0) / run.cars.length;
  by("cars").textContent = !run.is_running ? "its cars are shown while it is at work" : run.cars.length ? `${run.cars.length} cars, ${(3.6 * speed).toFixed(0)}\u00a0km/h on average`
    : run.track.left.length ? "its cars are not on the track now" : "it races on several tracks, or on none: no cars are drawn";
  map.draw(run.is_running ? run.cars : []); drawNumbers(by("numbers"), run.latest);
  document.documentElement.dataset.seen = run.latest.env_steps ?? "";
}

async function load() {
  const found = await ask(`/run.json?run=${encodeURIComponent(choice?.value ?? "")}`, by("problem"));
  if (!found) return;
  run = found; by("problem").replaceChildren();
  by("track").textContent = run.track.name ? `${run.track.name}, ${run.track.length_m.toFixed(0)}\u00a0m` : "Track";
  map = new TrackMap(by("map"), run.track);
  by("map").style.display = run.track.left.length ? "" : "none";
  state(); drawCurves(by("curves"), run.curves);
}

async function follow() {
  const told = run && await ask(`/newest.json?run=${encodeURIComponent(run.key)}`, by("problem"));
  if (!told || told.key !== run.key) return;
  const before = run.latest.env_steps ?? 0, now = told.latest.env_steps ?? 0;
  Object.assign(run, told);
  state();
  if (now === before) return;
  const newest = Object.entries(told.latest).filter(([name, value]) => name !== "env_steps" && typeof value === "number");
  if (now < before || newest.some(([name]) => (run.curves[name]?.length ?? 0) >= MOST_POINTS)) return load();
  for (const [name, value] of newest) (run.curves[name] ??= []).push([now, value]);
  if (performance.now() - drawn > 1500) { drawCurves(by("curves"), run.curves); drawn = performance.now(); }
}

choice?.addEventListener("change", () => { history.replaceState(null, "", `?run=${encodeURIComponent(choice.value)}`); load(); });
if (by("map")) { load(); repeat(1, follow); }
