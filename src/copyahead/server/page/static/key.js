// The dialog that asks for a key.

import { currentKey, keepKey } from "./api.js";

const dialog = document.getElementById("key-dialog");
const field = document.getElementById("key");
const reason = document.getElementById("key-reason");
const change = document.getElementById("change-key");
let asking = null;

/** A key, or null where none is given. Who asks while the dialog is open gets the same answer. */
export function ask(why) {
  reason.textContent = why;
  if (asking === null) {
    asking = new Promise((resolve) => {
      dialog.addEventListener("close", () => resolve(taken()), { once: true });
    });
    dialog.returnValue = "";
    dialog.showModal();
  }
  return asking;
}

function taken() {
  const key = dialog.returnValue === "use" ? field.value.trim() : "";
  asking = null;
  field.value = "";
  change.hidden = key === "" && currentKey() === null;
  return key === "" ? null : key;
}

// Enter is for the last button, not for the first as a browser has it.
field.addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  dialog.close("use");
});
change.hidden = currentKey() === null;
change.addEventListener("click", async () => {
  const key = await ask("Another key, for what is asked from now on.");
  if (key !== null) keepKey(key);
});
