// Text in pieces, told apart into prose and fenced code, line by line.

const FENCE = "```";

/** Calls `show(text, isCode, run)` for every part of what is pushed; a part has one kind. */
export class Fences {
  #show;
  #isCode = false;
  #isClosing = false;
  #line = "";
  #held = [];

  constructor(show) {
    this.#show = show;
  }

  /** Add the text of `run`. The beginning of a line is held until it is known to be a fence. */
  push(text, run) {
    if (text === "") return;
    for (const line of text.split(/(?<=\n)/)) this.#pushPart(line, run);
  }

  /** Show what is held. */
  finish() {
    for (const [text, run] of this.#held) this.#show(text, this.#isCode, run);
    this.#held = [];
  }

  #pushPart(part, run) {
    const mayBe = this.#held.length > 0 || this.#line === "";
    this.#line += part;
    this.#held.push([part, run]);
    const start = this.#line.trimStart();
    const isOpen = mayBe && FENCE.startsWith(start) && start.length < FENCE.length;
    if (isOpen && !this.#line.endsWith("\n")) return;
    if (mayBe && start.startsWith(FENCE)) {
      this.#isClosing = this.#isCode;
      this.#isCode = true;
    }
    this.finish();
    if (!this.#line.endsWith("\n")) return;
    if (this.#isClosing) this.#isCode = this.#isClosing = false;
    this.#line = "";
  }
}
