// Elements and texts. Whatever comes from a document or a file name gets onto the page here, and
// only as text.

const byId = (id) => document.getElementById(id);

// Characters that would act on the text around them or cannot be seen: controls, and those that
// turn the direction of writing.
const NAME_CONTROLS = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const TEXT_CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202d\u202e]/g;

const safeName = (text) => String(text).replace(NAME_CONTROLS, "\ufffd");
const safeText = (text) => String(text).replace(TEXT_CONTROLS, "\ufffd");

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function show(element, shown = true) {
  element.hidden = !shown;
}

const count = (number) => Number(number).toLocaleString("en");
const several = (number, one) => `${count(number)} ${one}${number === 1 ? "" : "s"}`;

// Part of a text by code points, as Python counts; JavaScript counts UTF-16 units.
const slice = (text, start, end) => Array.from(text).slice(start, end).join("");

function placeOf(passage) {
  const page = passage.page === null ? [] : [`page ${count(passage.page)}`];
  const chapter = passage.chapter ? [safeName(passage.chapter)] : [];
  return [...page, `line ${count(passage.line)}`, ...chapter].join(" · ");
}
