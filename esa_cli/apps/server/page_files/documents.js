// The list of documents with a check box for each, and the text of the open document.

// Documents that requests may name: id, name, kind, and the check box.
let listed = [];

const chosenDocuments = () => listed.filter((one) => one.box.checked);

async function loadDocuments() {
  try {
    const { data, left_out: leftOut } = await getJson("/v1/documents");
    const hasGiven = data.some((one) => one.kind === "given");
    listed = data;
    byId("list").replaceChildren(...data.map((one, index) => makeItem(one, index, !hasGiven || one.kind === "given")));
    show(byId("left-out"), leftOut.length > 0);
    byId("left-out").querySelector("ul").replaceChildren(...leftOut.map((text) => make("li", {}, safeName(text))));
    show(byId("filter"), data.length > 8);
    show(byId("choose-all"), data.length > 1);
    byId("list-note").textContent = data.length ? "" : "There is no document here: give some to `esa serve`, or files to a folder of --allow.";
    showChosen();
  } catch (error) {
    byId("list-note").textContent = error.message;
  }
}

function makeItem(one, index, isChosen) {
  one.box = make("input", { type: "checkbox", id: `document-${index}` });
  one.box.checked = isChosen;
  one.box.addEventListener("change", showChosen);
  const name = safeName(one.kind === "file" ? one.id : one.name);
  const label = make("label", { for: one.box.id, title: name }, make("bdi", { class: "name" }, name));
  const open = make("button", { type: "button", class: "plain", "aria-label": `Open ${name}`, title: "Show the text" }, "›");
  open.addEventListener("click", () => showDocument({ id: one.id, name: one.name, from: open, turn: null, number: null }, 0, 1));
  one.item = make("li", { "data-name": name.toLowerCase() }, one.box, label, open);
  return one.item;
}

function showChosen() {
  const chosen = chosenDocuments();
  byId("choose-all").textContent = chosen.length === listed.length ? "None" : "All";
  const text = chosen.length === 1 ? safeName(chosen[0].name) : several(chosen.length, "document");
  byId("about").textContent = chosen.length ? `About ${text}` : "No document is chosen";
}

byId("filter").addEventListener("input", () => {
  const words = byId("filter").value.trim().toLowerCase();
  for (const { item } of listed) show(item, item.dataset.name.includes(words));
});

byId("choose-all").addEventListener("click", () => {
  const boxes = listed.filter((one) => !one.item.hidden).map((one) => one.box);
  const areAllChosen = boxes.every((box) => box.checked);
  for (const box of boxes) box.checked = !areAllChosen;
  showChosen();
});

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

function noteReading(text) {
  byId("reading-note").textContent = safeName(text);
  show(byId("reading-note"), Boolean(text));
}

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
// the quotation or a page begins or ends.
function markPiece(piece) {
  const { turn, name } = shown;
  const inDocument = (spans) => spans.filter((one) => one && one.document === name);
  const passages = turn ? inDocument(turn.evidence) : [];
  const quoted = turn ? inDocument([turn.quotation]) : [];
  const heat = turn ? inDocument(turn.heat).flatMap((one) => one.spans) : [];
  const shades = heat.map(([start, end, level]) => ({ start, end, level })).filter((one) => one.start < piece.end && one.end > piece.start);
  const pages = new Map(piece.marks.filter((one) => one.page !== null).map((one) => [one.start, one.page]));
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
    for (const one of passages.filter((passage) => passage.start === start)) parts.push(makeNumber(turn.evidence.indexOf(one)));
    const text = safeText(points.slice(start - piece.start, places[index + 1] - piece.start).join(""));
    const shade = shades.find(covers);
    const kinds = [shade && `h${shade.level}`, passages.some(covers) && "in", quoted.some(covers) && "quoted"].filter(Boolean);
    parts.push(kinds.length ? make(quoted.some(covers) ? "mark" : "span", { class: kinds.join(" ") }, text) : text);
  });
  return parts;
}

function makeNumber(number) {
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
