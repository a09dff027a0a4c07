// One's own races: sends what is pressed, shows the pictures and the state that come back.

const by = id => document.getElementById(id);
const KEYS = { ArrowUp: "gas", KeyW: "gas", ArrowDown: "brake", KeyS: "brake", ArrowLeft: "left", KeyA: "left", ArrowRight: "right", KeyD: "right" };
const RESTART = ["KeyR", "Backspace"], TAKE_OVER = "Space", RELEASED = { steer: 0, gas: 0, brake: 0, takes_over: false };
const DEAD_ZONE = 0.08, STICK = 0, LEFT_TRIGGER = 6, RIGHT_TRIGGER = 7, BUMPERS = [4, 5], START = 9, PAD_MS = 10, SPLIT_MS = 3000, GO_MS = 800;
const pressed = new Set(), picture = by("picture").getContext("2d");
let socket = null, state = {}, sent = "", isAway = false, padAt = 0, startWasDown = false, received = 0, drawn = 0;

const seconds = ms => (ms / 1000).toFixed(2);
const signed = ms => (ms > 0 ? "+" : ms < 0 ? "\u2212" : "\u00b1") + seconds(Math.abs(ms));

function send(message) {
  if (state.drives && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

/** Keys and gamepad together; nothing while the page has lost the focus. */
function controls(pad) {
  if (isAway) return RELEASED;
  const held = name => [...pressed].some(code => KEYS[code] === name) ? 1 : 0;
  const stick = pad?.axes[STICK] ?? 0, beyond = Math.max(Math.abs(stick) - DEAD_ZONE, 0) / (1 - DEAD_ZONE);
  const trigger = k => Math.min(Math.max(pad?.buttons[k]?.value ?? 0, 0), 1);
  const steer = Math.min(Math.round(100 * beyond) / 100, 1) * (stick < 0 ? -1 : 1);
  const takesOver = pressed.has(TAKE_OVER) || BUMPERS.some(k => pad?.buttons[k]?.pressed);
  return { steer: held("right") - held("left") || steer, gas: Math.max(held("gas"), trigger(RIGHT_TRIGGER)), brake: Math.max(held("brake"), trigger(LEFT_TRIGGER)), takes_over: takesOver };
}
const gamepad = () => navigator.getGamepads().find(pad => pad?.connected);

function drive(pad = gamepad()) {
  const message = { kind: "drive", ...controls(pad) }, text = JSON.stringify(message);
  if (text === sent || !state.drives) return;
  sent = text; send(message);
}
function restart() { send({ kind: "restart" }); by("picture").focus(); }
function release() { pressed.clear(); isAway = true; drive(); }
function isTyping(event) { return event.target === by("name"); }

addEventListener("keydown", event => {
  if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  isAway = false;
  if (RESTART.includes(event.code)) { event.preventDefault(); if (!event.repeat) restart(); }
  if (event.code in KEYS || (event.code === TAKE_OVER && state.agent)) { event.preventDefault(); pressed.add(event.code); drive(); }
});
addEventListener("keyup", event => { pressed.delete(event.code); drive(); });
addEventListener("focus", () => { isAway = false; });
addEventListener("blur", release);
document.addEventListener("visibilitychange", () => { if (document.hidden) release(); });
by("name").addEventListener("focus", () => { pressed.clear(); drive(); });
by("name").addEventListener("change", event => { localStorage.driver = event.target.value; send({ kind: "name", name: event.target.value }); });
by("name").addEventListener("keydown", event => { if (event.key === "Enter") event.target.blur(); });
by("restart").addEventListener("click", event => { event.target.blur(); restart(); });
by("keep").addEventListener("click", () => send({ kind: "keep" }));

function look(now) {
  const pad = gamepad(), isDown = pad?.buttons[START]?.pressed ?? false;
  if (pad && now - padAt >= PAD_MS) { padAt = now; drive(pad); }
  if (isDown && !startWasDown && !isAway) restart();
  startWasDown = isDown;
  requestAnimationFrame(look);
}

/** What stands in the middle of the picture. */
function word() {
  if (!state.drives) return "Another tab drives, this one watches.";
  if (state.is_paused) return "Paused. Press a key to go on.";
  if (state.phase === "ready") return "Press R to start.";
  if (state.phase === "countdown") return String(state.countdown);
  if (state.phase === "racing") return state.time_ms < GO_MS ? "Go!" : "";
  if (state.phase === "finished") return `${seconds(state.time_ms)} s${state.medal ? `, ${state.medal} medal` : ""}`;
  return `It ended: the car ${state.phase}. R starts anew.`;
}
function put(id, text) { const place = by(id); place.hidden = !text; if (place.textContent !== text) place.textContent = text; }

/** Puts rows of texts into a part of a table, unless they are there. */
function fill(id, rows, kind = "td") {
  const part = by(id), text = JSON.stringify(rows);
  if (part.dataset.shown === text) return;
  part.dataset.shown = text;
  part.replaceChildren(...rows.map(cells => {
    const row = document.createElement("tr");
    row.append(...cells.map((cell, place) => Object.assign(document.createElement(place ? kind : "th"), { textContent: cell })));
    return row;
  }));
}

function show() {
  const last = state.splits.at(-1), isEnd = state.phase === "finished";
  put("time", seconds(state.time_ms)); put("speed", `${state.speed_kmh} km/h`); put("word", word());
  put("split", last && last[1] !== null && (isEnd || state.time_ms - last[0] < SPLIT_MS) ? signed(last[1]) : "");
  by("split").classList.toggle("behind", Boolean(last) && last[1] > 0);
  put("wheel", state.agent && (state.is_by_person ? "You drive." : `${state.agent} drives. Hold Space to take over.`));
  put("slow", state.pace < 0.97 ? `This machine is too slow: the clock runs at ${Math.round(100 * state.pace)} %.` : "");
  const ghostTime = state.ghost_ms ? `, ${seconds(state.ghost_ms)} s` : "";
  put("ghost", state.ghost ? `The ghost is ${state.ghost}${ghostTime}.` : "Your best race becomes the ghost.");
  put("kept", state.kept && `Kept as ${state.kept}.`); put("problem", state.problem); by("keep").hidden = !state.is_offered || !state.drives;
  fill("splits", state.splits.map(([own, behind], k) => [isEnd && k === state.splits.length - 1 ? "finish" : k + 1, seconds(own), behind === null ? "\u2013" : signed(behind)]));
  by("lost-time").hidden = !state.lost.summary; put("summary", state.lost.summary);
  fill("bend", state.lost.table.slice(0, 1), "th"); fill("bends", state.lost.table.slice(1));
  document.documentElement.dataset.phase = state.phase;
}

async function draw(blob) {
  const mine = ++received, image = await createImageBitmap(blob);
  if (mine > drawn) { drawn = mine; picture.drawImage(image, 0, 0); document.documentElement.dataset.inputs = state.inputs; }
  image.close();
}

function connect() {
  socket = new WebSocket(`ws://${location.host}/drive/socket`);
  sent = JSON.stringify({ kind: "drive", ...RELEASED });
  socket.onopen = () => { by("lost").hidden = true; };
  socket.onmessage = ({ data }) => {
    if (typeof data !== "string") return draw(data);
    const before = state, news = JSON.parse(data);
    if (news.refused) return put("problem", news.refused);
    state = news;
    if (state.drives && !before.drives && localStorage.driver) send({ kind: "name", name: localStorage.driver });
    if (!by("name").value && document.activeElement !== by("name")) by("name").value = localStorage.driver ?? state.player;
    show();
  };
  // Refused: what was wrong stays on the page. Else the server may come back.
  socket.onclose = ({ code }) => { state = {}; if (code !== 1008) { by("lost").hidden = false; setTimeout(connect, 1000); } };
}
connect();
requestAnimationFrame(look);
