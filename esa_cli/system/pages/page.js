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

const form = document.querySelector(".filters");
if (form) {
  const rows = [...document.querySelectorAll(".questions tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const filters = [...form.querySelectorAll("[data-filter]")];
  const count = document.getElementById("count");
  const show = () => {
    let shown = 0;
    rows.forEach((row, i) => {
      const fits = filters.every(({ dataset: { filter }, value }) =>
        !value || (filter === "words" ? texts[i].includes(value.toLowerCase())
                                      : row.dataset[filter] === value));
      row.hidden = !fits;
      shown += fits;
    });
    count.textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} questions`;
  };
  form.hidden = false;
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(show));
}
