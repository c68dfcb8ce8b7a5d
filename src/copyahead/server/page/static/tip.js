// The note beside a run of text, under the pointer or at the keyboard's focus.

import { describe } from "./sources.js";

const tip = document.getElementById("tip");
const MARGIN = 8;
const runs = new WeakMap();
let shown = null;

/** Have `element` show what is known of `run`. */
export function attach(element, run) {
  runs.set(element, run);
}

/** Show and hide notes for all runs within `container`. */
export function watch(container) {
  container.addEventListener("pointerover", (event) => show(event.target));
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

function show(element) {
  const run = runs.get(element);
  if (shown !== element) hide();
  if (!run) return;
  shown = element;
  tip.textContent = describe(run);
  tip.hidden = false;
  element.setAttribute("aria-describedby", "tip");
  const [box] = element.getClientRects();
  if (box) place(box, tip.getBoundingClientRect());
}

function place(box, size) {
  const room = document.documentElement.clientWidth - size.width - MARGIN;
  const above = box.top - size.height - MARGIN;
  tip.style.left = `${Math.max(MARGIN, Math.min(box.left, room))}px`;
  tip.style.top = `${above > MARGIN ? above : box.bottom + MARGIN}px`;
}

window.addEventListener("scroll", hide, { passive: true });
