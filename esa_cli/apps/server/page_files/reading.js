// A document's text, a piece at a time. Marked in it: the shades of the answer's heat map, and its
// passages.

const PIECE = 40000;

// The document that is open: its id and name, the element that gets the focus back, the turn with
// the passages to mark, the number of the present one, and the piece of its text.
let shown = null;

function openDocument(id, name, from) {
  return showDocument({ id, name, from, turn: null, number: null }, 0, 1);
}

function openPassage(turn, number, from, focus) {
  const passage = turn.evidence[number];
  const heat = turn.heat.find((one) => one.document === passage.document);
  if (heat) showDocument({ id: heat.id, name: passage.document, from, turn, number }, passage.start, passage.end, focus);
}

async function showDocument(wanted, start, end, focus = true) {
  const same = shown && shown.id === wanted.id && shown.turn === wanted.turn;
  const current = { ...wanted, piece: same ? shown.piece : null };
  shown = current;
  show(byId("reading"));
  byId("panes").classList.add("open");
  showDocumentList(false);
  byId("reading-name").textContent = safeName(wanted.name);
  byId("reading-place").textContent = wanted.turn ? placeOf(wanted.turn.evidence[wanted.number]) : "";
  noteReading("");
  if (focus) byId("pages").focus({ preventScroll: true });
  const { piece } = current;
  if (!piece || start < piece.start || end > piece.end) await loadPiece(start - PIECE / 4);
  if (current === shown && current.piece) goToPassage();
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
  const { turn, name } = shown;
  const heat = turn ? turn.heat.find((one) => one.document === name).spans : [];
  const quoted = turn && turn.quotation && turn.quotation.document === name ? turn.quotation : null;
  const passages = turn ? turn.evidence.filter((one) => one.document === name) : [];
  const pages = new Map(piece.marks.filter((one) => one.page !== null).map((one) => [one.start, one.page]));
  const warm = heat.filter(([start, end]) => start < piece.end && end > piece.start);
  const spans = [...warm, ...[...passages, ...(quoted ? [quoted] : [])].map((one) => [one.start, one.end])];
  const edges = [...spans.flatMap(([start, end]) => [start, end]), ...pages.keys()];
  const inside = edges.filter((at) => at > piece.start && at < piece.end);
  const places = [...new Set([piece.start, ...inside, piece.end])].sort((a, b) => a - b);
  const points = Array.from(piece.text);
  const out = [];
  places.slice(0, -1).forEach((start, index) => {
    const covers = (one) => one && one.start <= start && start < one.end;
    const shade = warm.find((one) => one[0] <= start && start < one[1]);
    if (pages.has(start) && (start > piece.start || start === 0)) {
      out.push(make("span", { class: "page", "aria-hidden": "true", "data-page": `page ${pages.get(start)}` }));
    }
    for (const one of passages.filter((passage) => passage.start === start)) out.push(numberSign(turn.evidence.indexOf(one)));
    const text = safeText(points.slice(start - piece.start, places[index + 1] - piece.start).join(""));
    const kinds = [shade && `h${shade[2]}`, passages.some(covers) && "in", covers(quoted) && "quoted"].filter(Boolean);
    out.push(kinds.length ? make(covers(quoted) ? "mark" : "span", { class: kinds.join(" ") }, text) : text);
  });
  return out;
}

function numberSign(number) {
  const about = { class: "number", "data-passage": number, "aria-label": `passage ${number + 1}`, role: "img" };
  return make("span", about, String(number + 1));
}

function goToPassage() {
  const { turn, number, piece } = shown;
  for (const old of byId("text").querySelectorAll(".number.here")) old.classList.remove("here");
  const sign = turn ? byId("text").querySelector(`[data-passage="${number}"]`) : null;
  if (!sign) return;
  sign.classList.add("here");
  const passage = turn.evidence[number];
  if (slice(piece.text, passage.start - piece.start, passage.end - piece.start) !== passage.text) {
    noteReading("The document has changed since this answer: what is marked may be elsewhere now.");
  }
  sign.scrollIntoView({ block: "center" });
}

byId("earlier").addEventListener("click", () => loadPiece(shown.piece.start - PIECE));
byId("later").addEventListener("click", () => loadPiece(shown.piece.end));
byId("close").addEventListener("click", closeReading);

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
