// The note beside a run of text, under the pointer or at the keyboard's focus.

import { describe } from "./sources.js";

const tip = document.getElementById("tip");
const composer = document.getElementById("composer");
const MARGIN = 8;
const runs = new WeakMap();
let shown = null;

/** Have `element` show what is known of `run`. */
export function attach(element, run) {
  runs.set(element, run);
}

/** Show and hide notes for all runs within `container`. */
export function watch(container) {
  container.addEventListener("pointerover", (event) => show(event.target, event.clientY));
  container.addEventListener("pointerout", () => show(document.activeElement));
  container.addEventListener("focusin", (event) => show(event.target));
  container.addEventListener("focusout", hide);
}

export function hide() {
  shown?.removeAttribute("aria-describedby");
  shown = null;
  tip.hidden = true;
}

export const isShown = () => shown !== null;

/** `y`: where the pointer is, if it is what points. */
function show(element, y = null) {
  const run = runs.get(element);
  if (shown !== element) hide();
  if (!run) return;
  shown = element;
  tip.textContent = describe(run);
  tip.hidden = false;
  element.setAttribute("aria-describedby", "tip");
  place(element, y, tip.getBoundingClientRect());
}

/** Above the line that is pointed at, or below the last line that is seen: there it hides least. */
function place(element, y, size) {
  const lowest = composer.getBoundingClientRect().top - size.height - MARGIN;
  const lines = [...element.getClientRects()];
  const seen = lines.filter((line) => line.bottom > 0 && line.top < lowest + size.height);
  const pointed = y === null ? undefined : lines.find((line) => line.top <= y && y <= line.bottom);
  const line = pointed ?? seen.at(-1) ?? element.getBoundingClientRect();
  const [above, below] = [line.top - size.height - MARGIN, line.bottom + MARGIN];
  const [first, second] = pointed ? [above, below] : [below, above];
  const top = [first, second].find((at) => at >= MARGIN && at <= lowest) ?? first;
  const room = document.documentElement.clientWidth - size.width - MARGIN;
  tip.style.left = `${Math.max(MARGIN, Math.min(line.left, room))}px`;
  tip.style.top = `${Math.max(MARGIN, Math.min(top, lowest))}px`;
}

window.addEventListener("scroll", hide, { passive: true });
