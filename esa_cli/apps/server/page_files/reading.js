// The text of the open document, with the passages of an answer marked in it.

const PIECE = 40000;

// The open document: its id and name, the element that gets the focus back, the turn whose passages
// are marked with the number of the present one, and the loaded piece of its text.
let shown = null;

async function showDocument(wanted, start, end) {
  const isSame = shown && shown.id === wanted.id && shown.turn === wanted.turn;
  const current = { ...wanted, piece: isSame ? shown.piece : null };
  shown = current;
  show(byId("reading"));
  byId("panes").classList.add("open");
  byId("reading-name").textContent = safeName(wanted.name);
  byId("reading-place").textContent = wanted.turn ? placeOf(wanted.turn.evidence[wanted.number]) : "";
  noteReading("");
  byId("pages").focus({ preventScroll: true });
  const { piece } = current;
  if (!piece || start < piece.start || end > piece.end) await loadPiece(start - PIECE / 4);
  if (current === shown && current.piece) goToPassage();
}

const noteReading = (text) => (byId("reading-note").textContent = safeName(text));

async function loadPiece(start) {
  const current = shown;
  try {
    const query = new URLSearchParams({ document: current.id, start: Math.max(0, start), length: PIECE });
    const piece = await getJson(`/v1/documents/text?${query}`);
    if (current !== shown) return;
    current.piece = piece;
    byId("text").replaceChildren(make("div", { class: "piece" }, ...markPiece(piece)));
    byId("pages").scrollTop = 0;
    show(byId("earlier"), piece.start > 0);
    show(byId("later"), piece.end < piece.characters);
  } catch (error) {
    if (current === shown) noteReading(error.message);
  }
}

// Returns the piece's text as texts and elements, split where a shade of the heat map, a passage,
// a quotation or a page begins or ends.
function markPiece(piece) {
  const { turn, name } = shown;
  const inDocument = (spans) => spans.filter((one) => one && one.document === name);
  const passages = turn ? inDocument(turn.evidence) : [];
  const quoted = turn ? inDocument(turn.quotations) : [];
  const heat = turn ? inDocument(turn.heat).flatMap((one) => one.spans) : [];
  const shades = heat.map(([start, end, level]) => ({ start, end, level })).filter((one) => one.start < piece.end && one.end > piece.start);
  const turned = piece.marks.filter((one, index) => one.page !== null && (index === 0 || one.page !== piece.marks[index - 1].page));
  const pages = new Map(turned.map((one) => [one.start, one.page]));
  const edges = [...shades, ...passages, ...quoted].flatMap((one) => [one.start, one.end]).concat(...pages.keys());
  const inside = edges.filter((at) => at > piece.start && at < piece.end);
  const places = [...new Set([piece.start, ...inside, piece.end])].sort((a, b) => a - b);
  const points = Array.from(piece.text);
  const parts = [];
  places.slice(0, -1).forEach((start, index) => {
    const covers = (one) => one.start <= start && start < one.end;
    if (pages.has(start) && (start > piece.start || start === 0)) {
      parts.push(make("span", { class: "page", "aria-hidden": "true", "data-page": `page ${pages.get(start)}` }));
    }
    for (const one of passages.filter((passage) => passage.start === start)) {
      const number = turn.evidence.indexOf(one);
      parts.push(make("span", { class: "number", "data-passage": number, "aria-label": `passage ${number + 1}`, role: "img" }, String(number + 1)));
    }
    const text = safeText(points.slice(start - piece.start, places[index + 1] - piece.start).join(""));
    const shade = shades.find(covers);
    const kinds = [shade && `h${shade.level}`, passages.some(covers) && "in", quoted.some(covers) && "quoted"].filter(Boolean);
    parts.push(kinds.length ? make(quoted.some(covers) ? "mark" : "span", { class: kinds.join(" ") }, text) : text);
  });
  return parts;
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
byId("close").addEventListener("click", closeDocument);

function closeDocument() {
  if (!shown) return;
  const { from } = shown;
  shown = null;
  show(byId("reading"), false);
  byId("panes").classList.remove("open");
  byId("text").replaceChildren();
  unmarkPassages();
  if (from && from.isConnected) from.focus();
}
