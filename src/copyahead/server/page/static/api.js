// The server's routes: requests with the key, errors in words, and streams as objects.

const KEY = "copyahead-key";

/** The server has refused or failed: `message` is what it says itself. */
export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** There is no server any more, or its answer broke off. */
export class ConnectionLost extends Error {}

/** Nobody gave a key. */
export class NoKey extends ServerError {}

let askForKey = async () => null;

/** `ask(reason)` gives a key, or null; it is called when the server says that it needs one. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** The key that was given in this tab, or null. */
export const currentKey = () => sessionStorage.getItem(KEY);
export const keepKey = (key) => sessionStorage.setItem(KEY, key);

/** A GET of `path` as an object. With `quiet`, nobody is asked for a key. */
export async function get(path, { quiet = false } = {}) {
  const response = await request(path, {}, quiet);
  return response.json();
}

/** The chunks of a chat completion, one by one; ends with the answer or throws. */
export async function* chat(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  for await (const data of events(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message, response.status);
    yield chunk;
  }
  throw new ConnectionLost("The connection was lost before the end of the answer.");
}

async function request(path, options, quiet = false) {
  for (;;) {
    const response = await send(path, options);
    if (response.ok) return response;
    const message = await errorOf(response);
    if (response.status !== 401) throw new ServerError(message, response.status);
    const key = quiet ? null : await askForKey(message);
    if (key === null) throw new NoKey(message, 401);
    keepKey(key);
  }
}

async function send(path, options) {
  const key = currentKey();
  const headers = { ...options.headers };
  if (key !== null) headers.authorization = `Bearer ${key}`;
  try {
    return await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    throw asLost(error, "The server cannot be reached. Is it still running?");
  }
}

async function errorOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

/** The data of each server-sent event. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        if (block.startsWith("data: ")) yield block.slice("data: ".length);
      }
    }
  } catch (error) {
    throw asLost(error, "The connection was lost before the end of the answer.");
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** What was thrown, unless it is what a browser throws for a connection. */
function asLost(error, message) {
  return error instanceof TypeError ? new ConnectionLost(message) : error;
}
