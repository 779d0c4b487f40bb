"use strict";
const root = document.documentElement;
const themes = { auto: "as the system", light: "light", dark: "dark" };
const button = document.getElementById("theme");

function setTheme(name) {
  if (name === "auto") delete root.dataset.theme;
  else root.dataset.theme = name;
  button.textContent = "Theme: " + themes[name];
}
button.hidden = false;
button.addEventListener("click", () => {
  const names = Object.keys(themes);
  const next = names[(names.indexOf(root.dataset.theme || "auto") + 1) % names.length];
  setTheme(next);
});
