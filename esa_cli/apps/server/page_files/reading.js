// A document's text, in pieces of a fixed grid: the one with the place that is wanted, then more as
// it is scrolled. Marked in it: the shades of the answer's heat map, and its passages.

const PIECE = 16000;
const BARS = 200;

// id and name of the document; of the turn it belongs to: its passages, quotation and heat, or none.
let shown = null;
let request = 0;

function openDocument(id, name, from) {
  return showDocument({ id, name, from, turn: null, passage: null, at: 0, heat: [], passages: [] });
}

// A passage of a turn; `from` gets the focus back.
function openPassage(turn, number, from, focus = true) {
  const passage = turn.evidence[number];
  const mine = (turn.heat || []).find((one) => one.document === passage.document);
  if (!mine) return Promise.resolve();
  const quotation = turn.quotation && turn.quotation.document === passage.document ? turn.quotation : null;
  const passages = turn.evidence
    .map((one, index) => ({ start: one.start, end: one.end, number: index + 1, document: one.document }))
    .filter((one) => one.document === passage.document);
  return showDocument({
    id: mine.id, name: passage.document, from, turn, passage, number: number + 1,
    at: passage.start, heat: mine.spans, passages, quotation, focus,
  });
}

async function showDocument(wanted) {
  const mine = ++request;
  const same = shown && shown.id === wanted.id && shown.turn === wanted.turn;
  shown = { ...wanted, adding: false, pieces: same ? shown.pieces : new Map(), characters: same ? shown.characters : 0 };
  show(byId("reading"));
  byId("panes").classList.add("open");
  closeDocuments();
  byId("reading-name").textContent = safeName(wanted.name);
  byId("reading-place").textContent = wanted.passage ? placeOf(wanted.passage).slice(1).join(" · ") : "";
  for (const id of ["previous", "next"]) show(byId(id), wanted.turn !== null);
  if (!same) {
    byId("text").replaceChildren();
    byId("strip").replaceChildren();
  }
  if (wanted.focus !== false) byId("pages").focus({ preventScroll: true });
  try {
    const number = Math.floor(wanted.at / PIECE);
    if (!shown.pieces.has(number)) {
      shown.pieces.clear();
      byId("text").replaceChildren();
      await addPiece(number, mine);
    }
    if (mine !== request) return;
    const end = wanted.passage ? wanted.passage.end - 1 : wanted.at;
    if (Math.floor(end / PIECE) > number) await addPiece(number + 1, mine);
    if (mine !== request) return;
    drawStrip();
    goToPassage();
  } catch (error) {
    if (mine === request) noteReading(error.message);
  }
}

function noteReading(text) {
  byId("reading-note").textContent = safeName(text);
  show(byId("reading-note"), Boolean(text));
}

async function addPiece(number, mine) {
  if (number < 0 || shown.pieces.has(number)) return;
  const address = new URLSearchParams({ document: shown.id, start: number * PIECE, length: PIECE });
  const piece = await json(`/v1/documents/text?${address}`);
  if (mine !== request || shown.pieces.has(number)) return;
  shown.characters = piece.characters;
  shown.pieces.set(number, piece);
  const element = make("div", { class: "piece", "data-number": number });
  element.append(...runs(piece));
  const after = [...byId("text").children].find((one) => Number(one.dataset.number) > number);
  byId("text").insertBefore(element, after || null);
  const numbers = [...shown.pieces.keys()];
  show(byId("earlier"), Math.min(...numbers) > 0);
  show(byId("later"), (Math.max(...numbers) + 1) * PIECE < shown.characters);
}

// The piece's text as text nodes and spans: split where a shade, passage, quotation or page begins
// or ends.
function runs(piece) {
  const { heat, passages, quotation } = shown;
  const points = new CodePoints(unwrapped(piece.text));
  const near = (one) => one[0] < piece.end && one[1] > piece.start;
  const warm = heat.filter(near);
  const marked = passages.filter((one) => near([one.start, one.end]));
  const edges = new Set([piece.start, piece.end]);
  const add = (at) => { if (at > piece.start && at < piece.end) edges.add(at); };
  for (const [start, end] of warm) { add(start); add(end); }
  for (const one of quotation ? [...marked, quotation] : marked) { add(one.start); add(one.end); }
  const marks = new Map(piece.marks.filter((one) => one.page !== null || one.chapter).map((one) => [one.start, one]));
  for (const at of marks.keys()) add(at);
  const places = [...edges].sort((a, b) => a - b);
  const out = [];
  let next = 0;
  let before = 0;
  places.slice(0, -1).forEach((start, index) => {
    const end = places[index + 1];
    while (next < warm.length && warm[next][1] <= start) next += 1;
    const level = next < warm.length && warm[next][0] <= start ? warm[next][2] : 0;
    const inside = marked.some((one) => one.start <= start && start < one.end);
    const quoted = quotation && quotation.start <= start && start < quotation.end;
    const mark = marks.get(start);
    if (mark && (start > piece.start || piece.start === 0) && mark.page !== null) out.push(make("span", { class: "page", "aria-hidden": "true", "data-page": `page ${mark.page}` }));
    for (const one of marked.filter((passage) => passage.start === start)) out.push(numberSign(one.number));
    let text = safeText(points.slice(start - piece.start, end - piece.start));
    if (level && !before) {
      // A token has the space before its word, which would be a stain of its own.
      const word = text.trimStart();
      out.push(text.slice(0, text.length - word.length));
      text = word;
    }
    before = level;
    const kinds = [level ? `h${level}` : "", inside ? "in" : "", quoted ? "quoted" : ""].filter(Boolean);
    out.push(kinds.length ? make(quoted ? "mark" : "span", { class: kinds.join(" ") }, text) : text);
  });
  return out;
}

function numberSign(number) {
  return make("span", { class: "number", "data-passage": number, "aria-label": `passage ${number}`, role: "img" }, String(number));
}

function goToPassage() {
  for (const old of byId("text").querySelectorAll(".number.here")) old.classList.remove("here");
  const number = shown.passage ? byId("text").querySelector(`[data-passage="${shown.number}"]`) : null;
  noteReading("");
  const target = number || byId("text").querySelector(`[data-number="${Math.floor(shown.at / PIECE)}"]`);
  if (!target) return;
  if (number) {
    number.classList.add("here");
    if (!sameText()) noteReading("The document has changed since this answer: what is marked may be elsewhere now.");
  }
  const pages = byId("pages");
  const top = target.getBoundingClientRect().top - pages.getBoundingClientRect().top;
  pages.scrollTop += top - (number ? pages.clientHeight / 4 : 0);
}

// Whether the passage is in the text that is shown where the answer found it.
function sameText() {
  const { start, end, text } = shown.passage;
  let found = "";
  for (const piece of [...shown.pieces.values()].sort((a, b) => a.start - b.start)) {
    if (piece.end <= start || piece.start >= end) continue;
    found += new CodePoints(piece.text).slice(Math.max(start, piece.start) - piece.start, end - piece.start);
  }
  return found === text;
}

const SVG = "http://www.w3.org/2000/svg";

function bar(x, width, height, kind) {
  const rect = document.createElementNS(SVG, "rect");
  for (const [name, value] of Object.entries({ x, width, height, y: 20 - height, class: kind })) rect.setAttribute(name, value);
  return rect;
}

// Bars where in the document the weight is, and marks of the passages.
function drawStrip() {
  const { heat, passages, characters } = shown;
  const strip = byId("strip");
  show(strip, heat.length > 0 && characters > 0);
  if (strip.hidden) return;
  const sums = new Array(BARS).fill(0);
  for (const [start, end, level] of heat) {
    sums[Math.min(BARS - 1, Math.floor((start * BARS) / characters))] += (end - start) * level * level;
  }
  const most = Math.max(...sums);
  const bars = sums.flatMap((sum, at) => sum ? [bar(at * 2 - 0.5, 3, 3 + 17 * Math.sqrt(sum / most), "warm")] : []);
  const marks = passages.map((one) => bar((400 * one.start) / characters - 0.5, 1, 20, one.number === shown.number ? "tick here" : "tick"));
  strip.replaceChildren(...marks.filter((one) => !one.classList.contains("here")), ...bars, ...marks.filter((one) => one.classList.contains("here")));
}

byId("strip").addEventListener("click", (event) => {
  const box = byId("strip").getBoundingClientRect();
  const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 0.9999);
  const at = Math.floor(share * shown.characters);
  const near = shown.passages.find((one) => Math.abs(one.start - at) * box.width < 8 * shown.characters);
  if (near) openPassage(shown.turn, near.number - 1, shown.from, false);
  else showDocument({ ...shown, passage: null, number: null, at, focus: false });
});

async function addBeside(direction) {
  if (!shown || shown.adding) return;
  const numbers = [...shown.pieces.keys()];
  if (!numbers.length) return;
  const current = shown;
  const pages = byId("pages");
  current.adding = true;
  try {
    const before = pages.scrollHeight - pages.scrollTop;
    await addPiece(direction < 0 ? Math.min(...numbers) - 1 : Math.max(...numbers) + 1, request);
    if (direction < 0 && current === shown) pages.scrollTop = pages.scrollHeight - before;
  } catch (error) {
    noteReading(error.message);
  } finally {
    current.adding = false;
  }
}

byId("earlier").addEventListener("click", () => addBeside(-1));
byId("later").addEventListener("click", () => addBeside(1));
byId("pages").addEventListener("scroll", () => {
  const pages = byId("pages");
  if (pages.scrollTop + pages.clientHeight > pages.scrollHeight - 400 && !byId("later").hidden) addBeside(1);
  else if (pages.scrollTop < 200 && !byId("earlier").hidden) addBeside(-1);
}, { passive: true });

function closeReading() {
  if (!shown) return;
  const { from } = shown;
  request += 1;
  shown = null;
  show(byId("reading"), false);
  byId("panes").classList.remove("open");
  byId("text").replaceChildren();
  for (const one of document.querySelectorAll(".passage[aria-current]")) one.removeAttribute("aria-current");
  if (from && from.isConnected) from.focus();
}

function closeDocuments() {
  document.body.classList.remove("choosing");
  nameToggle();
}

byId("close").addEventListener("click", closeReading);
