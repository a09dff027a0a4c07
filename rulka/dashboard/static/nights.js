// Pace of both agents, night by night, with intervals.
import { CONFIG, ask, charts, hue, layout, onScheme } from "./common.js";

const choice = document.getElementById("track"), place = document.getElementById("paces");
let data = null;

async function draw() {
  const Plotly = await charts();
  const traces = ["promoted", "latest"].map((role, k) => {
    document.getElementById(`key-${role}`).style.setProperty("--own", hue(k));
    const rows = data.rows.filter(row => row.uid === choice.value && row.role === role);
    return { x: rows.map(row => row.night), y: rows.map(row => row.pace_mps), name: role, mode: "lines+markers", line: { color: hue(k), width: k ? 1.8 : 5 }, opacity: k ? 1 : 0.6,
      marker: { size: rows.map(row => (row.is_worse ? 13 : 7) + (k ? 0 : 5)), color: hue(k), symbol: rows.map(row => row.is_worse ? "circle-open-dot" : "circle") },
      error_y: { type: "data", symmetric: false, array: rows.map(row => row.pace_high_mps - row.pace_mps), arrayminus: rows.map(row => row.pace_mps - row.pace_low_mps), thickness: 1.2, width: 4, color: hue(k) },
      customdata: rows.map(row => [row.agent, row.pace_low_mps, row.pace_high_mps, row.finished, row.races]),
      hovertemplate: "%{x}, %{customdata[0]}<br>%{y:.2f} m/s (%{customdata[1]:.2f} to %{customdata[2]:.2f})<br>%{customdata[3]} of %{customdata[4]} finished<extra>%{fullData.name}</extra>" };
  });
  await Plotly.react(place, traces, layout({ xaxis: { type: "category" }, yaxis: { title: { text: "pace, m/s" }, rangemode: "nonnegative" } }), CONFIG);
}

if (place) {
  data = await ask("/nights.json", document.getElementById("problem"));
  if (data) {
    choice.replaceChildren(...Object.entries(data.tracks).map(([uid, name]) => new Option(name, uid)));
    choice.onchange = draw; onScheme(draw); draw();
  }
}
