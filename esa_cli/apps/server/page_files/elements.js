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
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function show(element, shown = true) {
  element.hidden = !shown;
}

function announce(text) {
  byId("announce").textContent = text;
}

const count = (number) => Number(number).toLocaleString("en");
const several = (number, one, many = one + "s") => `${count(number)} ${number === 1 ? one : many}`;

function bytes(number) {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (number >= size) return `${(number / size).toPrecision(number / size < 10 ? 2 : 3)} ${unit}`;
  }
  return `${number} B`;
}

// Python counts code points, JavaScript UTF-16 units: they differ where a text has characters
// beyond U+FFFF.
class CodePoints {
  constructor(text) {
    this.text = text;
    this.points = /[\ud800-\udbff][\udc00-\udfff]/.test(text) ? Array.from(text) : null;
  }

  get length() {
    return this.points ? this.points.length : this.text.length;
  }

  slice(start, end) {
    return this.points ? this.points.slice(start, end).join("") : this.text.slice(start, end);
  }
}

// A text whose lines were all broken at one width, as in old text files: such breaks are shown as
// spaces, so that lines are as long as the window lets them. It stays as long as it was.
function unwrapped(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  const full = lines.filter((line) => line.length >= 50 && line.length <= 85);
  if (lines.length < 20 || 2 * full.length < lines.length || lines.some((line) => line.length > 100)) return text;
  return text.replace(/([^\n]{50})\n(?=[^\s*#>|-])/g, "$1 ");
}

function placeOf(passage) {
  const parts = [safeName(passage.document)];
  if (passage.page !== null) parts.push(`page ${count(passage.page)}`);
  parts.push(`line ${count(passage.line)}`);
  if (passage.chapter) parts.push(safeName(passage.chapter));
  return parts;
}
