// The page: its parts wired together.

import * as api from "./api.js";
import { Conversation } from "./conversation.js";
import * as key from "./key.js";
import * as settings from "./settings.js";
import * as strip from "./strip.js";
import * as theme from "./theme.js";
import * as tip from "./tip.js";

const byId = (id) => document.getElementById(id);
const [log, composer, message] = [byId("log"), byId("composer"), byId("message")];
const [send, stop, welcome] = [byId("send"), byId("stop"), byId("welcome")];
const NEAR_END_PX = 120;

const conversation = new Conversation(log);
let retry = null;
let isFollowing = true;

async function ask(question) {
  removeRetry();
  isFollowing = true;
  welcome.hidden = true;
  busy(true);
  try {
    say("The answer is being written.");
    say(await conversation.ask(question, byId("compare").checked));
    if (!conversation.isEmpty) offerRetry();
  } catch (error) {
    if (!(error instanceof settings.WrongSetting)) throw error;
    say(error.message);
    complain(error.message);
    message.value = message.value || question;
  } finally {
    busy(false);
  }
}

function busy(isBusy) {
  stop.hidden = !isBusy;
  send.disabled = isBusy;
  byId("compare").disabled = isBusy;
  if (!isBusy && document.activeElement === document.body) message.focus();
}

function say(text) {
  byId("announce").textContent = text;
}

/** Say what is wrong where it is read, until the next message. */
function complain(text) {
  retry = document.createElement("p");
  retry.className = "failure";
  retry.setAttribute("role", "alert");
  retry.textContent = text;
  log.append(retry);
}

function offerRetry() {
  retry = document.createElement("button");
  retry.type = "button";
  retry.className = "retry";
  retry.textContent = "Retry";
  retry.addEventListener("click", () => {
    const question = conversation.takeLast();
    if (question !== undefined) ask(question);
  });
  log.append(retry);
}

function removeRetry() {
  retry?.remove();
  retry = null;
}

function submit() {
  const question = message.value;
  if (conversation.isBusy || question.trim() === "") return;
  message.value = "";
  fit();
  ask(question);
}

/** The message's field is as high as its text, up to a limit that the style sets. */
function fit() {
  message.style.height = "auto";
  message.style.height = `${message.scrollHeight + 2}px`;
}

composer.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
message.addEventListener("input", fit);
message.addEventListener("keydown", (event) => {
  // While a text is being composed, Enter chooses a character.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (conversation.isBusy) conversation.stop();
  else tip.hide();
});
stop.addEventListener("click", () => conversation.stop());
byId("new-chat").addEventListener("click", () => {
  conversation.clear();
  removeRetry();
  welcome.hidden = false;
  message.focus();
});

// Follow the text as it is written, unless the reader has gone elsewhere.
const page = document.documentElement;
new ResizeObserver(() => {
  if (isFollowing) page.scrollTop = page.scrollHeight;
}).observe(log);
window.addEventListener("scroll", () => {
  isFollowing = page.scrollHeight - page.clientHeight - page.scrollTop < NEAR_END_PX;
}, { passive: true });

api.onKeyNeeded(key.ask);
theme.start();
settings.restore();
strip.start((status) => {
  byId("model").textContent = status.model;
  settings.offer(status);
});
message.focus();
