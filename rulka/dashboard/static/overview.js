// What trains now, on the overview.
import { onEvent } from "./common.js";
import { show } from "./draw.js";

const list = document.getElementById("trainings"), known = new Map();
function draw() {
  list.replaceChildren(...[...known.values()].map(run => {
    const item = document.createElement("p"), link = document.createElement("a"), dot = document.createElement("span");
    dot.className = "dot"; item.className = "on";
    link.href = `/live?run=${encodeURIComponent(run.key)}`; link.textContent = run.run;
    const l = run.latest;
    item.append(dot, link, ` ${show(l.env_steps, 0)} environment steps, ${show(l.env_steps_per_s, 0)} a second, ${show(l.finish_rate, "%")} of races finished${l.record_s == null ? "" : `, record ${show(l.record_s, 2)} s`}`);
    return item;
  }));
  document.getElementById("quiet").hidden = known.size > 0;
}
onEvent("training", run => { known.set(run.key, run); draw(); });
onEvent("ended", key => { known.delete(key); draw(); });
