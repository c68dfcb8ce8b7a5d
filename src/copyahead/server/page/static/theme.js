// Light, dark, or as the system has it.

const KEPT = "copyahead-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const button = document.getElementById("theme");

function apply(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  button.textContent = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" }[theme];
  button.dataset.theme = theme;
}

/** Apply what was chosen before, and let the button choose. */
export function start() {
  const kept = localStorage.getItem(KEPT);
  apply(kept in NEXT ? kept : "auto");
  button.addEventListener("click", () => {
    const theme = NEXT[button.dataset.theme];
    localStorage.setItem(KEPT, theme);
    apply(theme);
  });
}
