// The live strip: what this key's requests do, asked for once a second while the page is seen.

import { currentKey, get } from "./api.js";
import { make } from "./answer.js";
import { SOURCES } from "./sources.js";

const PERIOD_MS = 1000;
const legend = document.getElementById("legend");
const note = document.getElementById("strip-note");
const cell = (name) => document.getElementById(`now-${name}`);
const counts = {};
let before = null;
/** The key that was refused; undefined while none was. */
let refused;
let onStatus = () => {};

/** Begin to ask. `take(status)` gets every answer. */
export function start(take) {
  onStatus = take;
  for (const [source, { name }] of Object.entries(SOURCES)) {
    const item = make("li");
    const sample = make("span", "run", name);
    sample.dataset.source = source;
    counts[source] = make("span", "count", "0");
    item.append(sample, counts[source]);
    legend.append(item);
  }
  ask();
}

async function ask() {
  if (document.visibilityState === "visible" && currentKey() !== refused) {
    try {
      // Who gave none when first asked is not asked again by this strip.
      const status = await get("copyahead/status", { quiet: refused !== undefined });
      refused = undefined;
      show(status);
      onStatus(status);
      say("");
    } catch (error) {
      before = null;
      if (error.status === 401) refused = currentKey();
      say(error.message);
    }
  } else {
    before = null;
  }
  setTimeout(ask, PERIOD_MS);
}

function show(status) {
  if (before !== null) {
    const passed = status.uptime_seconds - before.uptime_seconds;
    const written = status.tokens - before.tokens;
    cell("rate").textContent = passed > 0 && written > 0 ? (written / passed).toFixed(0) : "–";
  }
  before = status;
  cell("round").textContent = status.rounds ? (status.tokens / status.rounds).toFixed(2) : "–";
  cell("accepted").textContent = status.drafted
    ? `${Math.round((100 * status.accepted) / status.drafted)}%`
    : "–";
  cell("slots").textContent = `${status.running}/${status.slots}`;
  cell("queue").textContent = `${status.waiting}`;
  for (const [source, count] of Object.entries(counts)) {
    count.textContent = `${status.by_source[source]?.accepted ?? 0}`;
  }
}

function say(text) {
  if (note.textContent !== text) note.textContent = text;
  note.hidden = text === "";
}
