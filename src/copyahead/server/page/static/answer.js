// One answer on the page: its tinted text, a clock, and what it came to.

import { Fences } from "./fences.js";
import * as tip from "./tip.js";

/** An element of the page with a class and a text. */
export function make(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

export class Answer {
  element = make("article", "answer");
  /** All that the model wrote, markers of its thinking included. */
  text = "";
  /** What is the answer for the next turn. */
  content = "";
  timings = null;
  finishReason = null;
  failure = null;
  isStopped = false;

  #body = make("div", "text");
  #foot = make("footer", "quiet");
  #clock = make("span", "clock");
  #block = null;
  #fences = new Fences((text, isCode, run) => this.#show(text, isCode, run));
  #startedAt = null;
  #ticking = 0;

  constructor(title = "") {
    if (title) this.element.append(make("h3", "", title));
    this.#body.setAttribute("role", "group");
    this.#body.setAttribute("aria-label", `${title || "Answer"}, arrow keys go through its parts`);
    this.#foot.append(this.#clock);
    this.element.append(this.#body, this.#foot);
    this.element.setAttribute("aria-busy", "true");
    this.#foot.append(make("span", "", "waiting"));
    this.#body.addEventListener("keydown", (event) => this.#move(event));
    tip.watch(this.#body);
  }

  /** Add a chunk of the stream. */
  push(chunk) {
    for (const choice of chunk.choices) {
      this.content += choice.delta?.content ?? "";
      for (const run of choice.copyahead?.runs ?? []) this.#add(run);
      this.finishReason = choice.finish_reason ?? this.finishReason;
    }
    this.timings = chunk.timings ?? this.timings;
  }

  /** Nothing more comes. */
  end() {
    this.#fences.finish();
    cancelAnimationFrame(this.#ticking);
    this.element.removeAttribute("aria-busy");
    this.#foot.replaceChildren(this.#clock, make("span", "", this.summary()));
    this.#clock.textContent = this.timings ? seconds(this.timings.predicted_ms) : "";
    if (this.failure !== null) {
      const alert = make("p", "failure", this.failure);
      alert.setAttribute("role", "alert");
      this.element.insertBefore(alert, this.#foot);
    }
  }

  get isWhole() {
    return this.failure === null && !this.isStopped;
  }

  /** What it came to, in words. */
  summary() {
    const parts = [];
    if (this.timings) {
      const t = this.timings;
      parts.push(`${t.predicted_n} tokens`, `${t.predicted_per_second.toFixed(1)} tok/s`);
      parts.push(`${t.tokens_per_round.toFixed(2)} tokens a round`);
      if (t.draft_n) parts.push(`${t.draft_n_accepted} of ${t.draft_n} drafted tokens kept`);
    }
    if (this.isStopped) parts.push("stopped");
    if (this.finishReason === "length") parts.push("cut off at the most tokens");
    return parts.join(" · ");
  }

  #add(run) {
    if (this.#startedAt === null) {
      this.#startedAt = performance.now();
      this.#foot.replaceChildren(this.#clock);
      this.#tick();
    }
    this.text += run.text;
    this.#fences.push(run.text, run);
  }

  #show(text, isCode, run) {
    const kind = isCode ? "code" : "prose";
    if (this.#block?.dataset.kind !== kind) {
      this.#block = make("div", kind);
      this.#block.dataset.kind = kind;
      this.#body.append(this.#block);
    }
    const span = make("span", "run", text);
    span.dataset.source = run.source ?? "none";
    span.tabIndex = this.#body.querySelector(".run") ? -1 : 0;
    tip.attach(span, run);
    this.#block.append(span);
  }

  /** The clock runs from the first text on: how long the prompt took is not what is compared. */
  #tick() {
    this.#clock.textContent = seconds(performance.now() - this.#startedAt);
    this.#ticking = requestAnimationFrame(() => this.#tick());
  }

  #move(event) {
    const runs = [...this.#body.querySelectorAll(".run")];
    const at = runs.indexOf(event.target);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: runs.length - 1 }[event.key];
    if (at < 0 || to === undefined || !runs[to]) return;
    event.preventDefault();
    runs[at].tabIndex = -1;
    runs[to].tabIndex = 0;
    runs[to].focus();
  }
}

/** Milliseconds as seconds that keep their width while they run. */
export function seconds(ms) {
  return `${(ms / 1000).toFixed(2)} s`;
}
