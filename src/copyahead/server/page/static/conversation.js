// The turns of a conversation, and how an answer is asked for: once, or plain and with lookup.

import { chat } from "./api.js";
import { Answer, make, seconds } from "./answer.js";
import * as settings from "./settings.js";

export class Conversation {
  /** Turns of `{question, content, element}`; `content` is the answer, empty where it failed. */
  #turns = [];
  #log;
  #abort = null;

  constructor(log) {
    this.#log = log;
  }

  get isBusy() {
    return this.#abort !== null;
  }

  get isEmpty() {
    return this.#turns.length === 0;
  }

  /** Ask `question` as the next turn; what came of it, in words. */
  async ask(question, isCompared) {
    // A setting that is wrong is said before anything is sent.
    const fields = settings.requestFields();
    const speculative = settings.speculative();
    const turn = { question, content: "", element: this.#element(question) };
    const messages = [...settings.systemMessages(), ...this.#history(), user(question)];
    this.#turns.push(turn);
    this.#log.append(turn.element);
    this.#abort = new AbortController();
    try {
      const body = { messages, ...fields };
      const write = isCompared ? this.#compare : this.#one;
      return await write.call(this, turn, body, speculative);
    } finally {
      this.#abort = null;
    }
  }

  /** Take the last turn away; its question. */
  takeLast() {
    const turn = this.#turns.pop();
    turn?.element.remove();
    return turn?.question;
  }

  /** End the answer that is being written. */
  stop() {
    this.#abort?.abort();
  }

  clear() {
    this.stop();
    while (this.#turns.length) this.takeLast();
  }

  async #one(turn, body, speculative) {
    const answer = await this.#run(turn.element, "", { ...body, speculative });
    turn.content = answer.content;
    return answer.failure ?? (answer.summary() || "The answer is empty.");
  }

  /** The same request twice, one after the other, so that neither slows the other down. */
  async #compare(turn, body, speculative) {
    const seed = body.seed ?? Math.floor(Math.random() * 2 ** 31);
    const pair = make("div", "pair");
    turn.element.append(pair);
    const plain = await this.#run(pair, "Plain", {
      ...body, seed, speculative: { enabled: false },
    });
    let lookup = null;
    if (plain.isWhole) {
      lookup = await this.#run(pair, "Lookup", {
        ...body, seed, speculative: { ...speculative, enabled: true },
      });
    }
    turn.content = (lookup ?? plain).content;
    const verdict = make("p", "verdict", verdictOf(plain, lookup));
    turn.element.append(verdict);
    return verdict.textContent;
  }

  async #run(parent, title, body) {
    const answer = new Answer(title);
    parent.append(answer.element);
    const { signal } = this.#abort;
    const options = { stream: true, stream_options: { include_usage: true }, include_sources: true };
    try {
      for await (const chunk of chat({ ...body, ...options }, signal)) answer.push(chunk);
    } catch (error) {
      if (signal.aborted) answer.isStopped = true;
      else answer.failure = error.message;
    }
    answer.end();
    return answer;
  }

  #history() {
    // What was refused, such as a text that is too long, is not sent again and again.
    return this.#turns
      .filter(({ content }) => content)
      .flatMap(({ question, content }) => [user(question), { role: "assistant", content }]);
  }

  #element(question) {
    const element = make("section", "turn");
    const said = make("div", "question", question);
    // A long text scrolls in its box, and the keyboard must get there.
    if (question.length > 600) said.tabIndex = 0;
    element.append(said);
    return element;
  }
}

const user = (content) => ({ role: "user", content });

/** What a comparison found. */
export function verdictOf(plain, lookup) {
  if (!plain.isWhole || !lookup?.isWhole) return "Not compared: an answer was stopped or has failed.";
  if (plain.text !== lookup.text) {
    const at = firstDifference(plain.text, lookup.text);
    return `The texts differ, from character ${at + 1} on.`;
  }
  // Rounds are said with the seconds: on a busy machine the seconds alone are chance.
  const cost = ({ timings: t }) => `${t.rounds} rounds and ${seconds(t.predicted_ms)}`;
  return `The texts are equal. Plain took ${cost(plain)}, lookup ${cost(lookup)}.`;
}

function firstDifference(left, right) {
  let at = 0;
  while (at < left.length && left[at] === right[at]) at += 1;
  return at;
}
