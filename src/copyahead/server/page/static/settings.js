// What is asked for besides the messages.

const KEPT = "copyahead-settings";
const form = document.getElementById("settings-form");
const fields = form.elements;

/** What is asked for is not a request: the message says which field and what it takes. */
export class WrongSetting extends Error {}

/** Fill the form with what this tab had, and keep what is changed. */
export function restore() {
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "{}");
  for (const [name, value] of Object.entries(kept)) {
    if (!fields[name]) continue;
    if (fields[name].type === "checkbox") fields[name].checked = value;
    else fields[name].value = value;
  }
  form.addEventListener("input", keep);
  form.addEventListener("submit", (event) => event.preventDefault());
}

/** Offer what `status` says of the server's policies and drafts. */
export function offer(status) {
  if (fields.policy.length > 1) return;
  fields.policy.options[0].textContent = `the server's${status.policy ? `: ${status.policy}` : ""}`;
  fields.policy.append(...status.policies.map((name) => new Option(name, name)));
  fields.max_draft_tokens.placeholder = `${status.max_draft_tokens}`;
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "{}");
  fields.policy.value = kept.policy ?? "";
}

/** The fields of a request that are the same for each of its runs. */
export function requestFields() {
  const given = {
    temperature: number("temperature", "Temperature", "a number such as 0.7"),
    seed: number("seed", "Seed", "a whole number"),
    max_tokens: number("max_tokens", "Most tokens", "a whole number"),
  };
  if (fields.prediction.value) {
    given.prediction = { type: "content", content: fields.prediction.value };
  }
  if (fields.json.checked) given.response_format = { type: "json_object" };
  return given;
}

/** How to draft. */
export function speculative() {
  return {
    enabled: fields.lookup.checked,
    policy: fields.policy.value || undefined,
    max_draft_tokens: number("max_draft_tokens", "Longest draft", "a whole number"),
  };
}

/** The message before all others, as a list of one or none. */
export function systemMessages() {
  const content = fields.system.value.trim();
  return content ? [{ role: "system", content }] : [];
}

function number(name, label, kind) {
  const text = fields[name].value.trim();
  if (text === "") return undefined;
  const value = Number(text.replace(",", "."));
  if (Number.isFinite(value)) return value;
  document.getElementById("settings").open = true;
  fields[name].focus();
  throw new WrongSetting(`${label} is not a number: give ${kind}, or leave it empty.`);
}

function keep() {
  const kept = {};
  for (const field of fields) {
    if (field.name) kept[field.name] = field.type === "checkbox" ? field.checked : field.value;
  }
  sessionStorage.setItem(KEPT, JSON.stringify(kept));
}
