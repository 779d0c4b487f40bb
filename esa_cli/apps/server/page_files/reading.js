// A document's text, a piece at a time. Marked in it: the shades of the answer's heat map, and its
// passages.

const PIECE = 40000;
const BARS = 200;

// The document that is open and its piece; passages, quotation and heat of its turn, if it has one.
let shown = null;

function openDocument(id, name, from) {
  return showDocument({ id, name, from, turn: null, passage: null, heat: [], passages: [] }, 0);
}

// A passage of a turn; `from` gets the focus back.
async function openPassage(turn, number, from, focus = true) {
  const passage = turn.evidence[number];
  const mine = (turn.heat || []).find((one) => one.document === passage.document);
  if (!mine) return;
  const quotation = turn.quotation && turn.quotation.document === passage.document ? turn.quotation : null;
  const passages = turn.evidence
    .map((one, index) => ({ start: one.start, end: one.end, number: index + 1, document: one.document }))
    .filter((one) => one.document === passage.document);
  await showDocument({ id: mine.id, name: passage.document, from, turn, passage, number: number + 1, heat: mine.spans, passages, quotation, focus }, passage.start);
}

async function showDocument(wanted, at) {
  const same = shown && shown.id === wanted.id && shown.turn === wanted.turn;
  const current = { ...wanted, piece: same ? shown.piece : null };
  shown = current;
  show(byId("reading"));
  byId("panes").classList.add("open");
  closeDocuments();
  byId("reading-name").textContent = safeName(wanted.name);
  byId("reading-place").textContent = wanted.passage ? placeOf(wanted.passage).slice(1).join(" · ") : "";
  for (const id of ["previous", "next"]) show(byId(id), wanted.turn !== null);
  noteReading("");
  if (wanted.focus !== false) byId("pages").focus({ preventScroll: true });
  const { piece } = current;
  const end = wanted.passage ? wanted.passage.end : at + 1;
  if (!piece || at < piece.start || end > piece.end) await loadPiece(at - PIECE / 4);
  if (current !== shown || !current.piece) return;
  drawStrip();
  goTo(at);
}

function noteReading(text) {
  byId("reading-note").textContent = safeName(text);
  show(byId("reading-note"), Boolean(text));
}

async function loadPiece(start) {
  const current = shown;
  try {
    const address = new URLSearchParams({ document: current.id, start: Math.max(0, start), length: PIECE });
    const piece = await json(`/v1/documents/text?${address}`);
    if (current !== shown) return;
    current.piece = piece;
    byId("text").replaceChildren(make("div", { class: "piece" }, ...runs(piece)));
    byId("pages").scrollTop = 0;
    show(byId("earlier"), piece.start > 0);
    show(byId("later"), piece.end < piece.characters);
  } catch (error) {
    if (current === shown) noteReading(error.message);
  }
}

// The piece's text as text nodes and spans: split where a shade, passage, quotation or page begins
// or ends.
function runs(piece) {
  const { heat, passages, quotation } = shown;
  const warm = heat.filter(([start, end]) => start < piece.end && end > piece.start);
  const marks = new Map(piece.marks.filter((one) => one.page !== null).map((one) => [one.start, one.page]));
  const stretches = quotation ? [...passages, quotation] : passages;
  const edges = [...warm.flatMap(([start, end]) => [start, end]), ...stretches.flatMap((one) => [one.start, one.end]), ...marks.keys()];
  const inside = edges.filter((at) => at > piece.start && at < piece.end);
  const places = [...new Set([piece.start, ...inside, piece.end])].sort((a, b) => a - b);
  const points = Array.from(piece.text);
  const out = [];
  let next = 0;
  places.slice(0, -1).forEach((start, index) => {
    while (next < warm.length && warm[next][1] <= start) next += 1;
    const level = next < warm.length && warm[next][0] <= start ? warm[next][2] : 0;
    const covers = (one) => one && one.start <= start && start < one.end;
    if (marks.has(start) && (start > piece.start || start === 0)) out.push(make("span", { class: "page", "aria-hidden": "true", "data-page": `page ${marks.get(start)}` }));
    for (const one of passages.filter((passage) => passage.start === start)) out.push(numberSign(one.number));
    const text = safeText(points.slice(start - piece.start, places[index + 1] - piece.start).join(""));
    const kinds = [level ? `h${level}` : "", passages.some(covers) ? "in" : "", covers(quotation) ? "quoted" : ""].filter(Boolean);
    out.push(kinds.length ? make(covers(quotation) ? "mark" : "span", { class: kinds.join(" ") }, text) : text);
  });
  return out;
}

function numberSign(number) {
  return make("span", { class: "number", "data-passage": number, "aria-label": `passage ${number}`, role: "img" }, String(number));
}

function goTo(at) {
  const { passage, piece } = shown;
  const pages = byId("pages");
  for (const old of byId("text").querySelectorAll(".number.here")) old.classList.remove("here");
  const number = passage ? byId("text").querySelector(`[data-passage="${shown.number}"]`) : null;
  if (!number) {
    pages.scrollTop = (pages.scrollHeight * (at - piece.start)) / Math.max(1, piece.end - piece.start);
    return;
  }
  number.classList.add("here");
  if (slice(piece.text, passage.start - piece.start, passage.end - piece.start) !== passage.text) noteReading("The document has changed since this answer: what is marked may be elsewhere now.");
  pages.scrollTop += number.getBoundingClientRect().top - pages.getBoundingClientRect().top - pages.clientHeight / 4;
}

function bar(x, width, height, kind) {
  const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ x, width, height, y: 20 - height, class: kind })) rect.setAttribute(name, value);
  return rect;
}

// Bars where in the document the weight is, and marks of the passages.
function drawStrip() {
  const { heat, passages, piece } = shown;
  const sums = new Array(BARS).fill(0);
  for (const [start, end, level] of heat) sums[Math.min(BARS - 1, Math.floor((start * BARS) / piece.characters))] += (end - start) * level * level;
  const most = Math.max(1, ...sums);
  const bars = sums.flatMap((sum, at) => (sum ? [bar(at * 2 - 0.5, 3, 3 + 17 * Math.sqrt(sum / most), "warm")] : []));
  const marks = passages.map((one) => bar((400 * one.start) / piece.characters - 0.5, 1, 20, one.number === shown.number ? "tick here" : "tick"));
  show(byId("strip"), heat.length > 0);
  byId("strip").replaceChildren(...bars, ...marks);
}

byId("strip").addEventListener("click", (event) => {
  const box = byId("strip").getBoundingClientRect();
  const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 0.9999);
  showDocument({ ...shown, passage: null, number: null, focus: false }, Math.floor(share * shown.piece.characters));
});
byId("earlier").addEventListener("click", () => loadPiece(shown.piece.start - PIECE));
byId("later").addEventListener("click", () => loadPiece(shown.piece.end));

function closeReading() {
  if (!shown) return;
  const { from } = shown;
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
