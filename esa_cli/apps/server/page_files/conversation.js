// The conversation: the question box, answers as they come, and the passages they rest on.

// Each has a question, answer, evidence, quotations, heat and elements; `isWhole` if not stopped.
const turns = [];
let running = null;
const box = byId("question");
let conversation = newId(); // the name under which the turns are stored

function newId() {
  return `${Date.now()}-${Math.random().toString(36).slice(2)}`;
}

// Asks a question with the answered turns among `earlier` as its history.
async function ask(question, documents, earlier = turns.slice()) {
  const turn = { question, answer: "", evidence: [], quotations: [], heat: [], isWhole: false };
  running = { turn, control: new AbortController() };
  addTurn(turn);
  setBusy(true);
  try {
    await answer(turn, documents, earlier.filter((one) => one.isWhole), running.control.signal);
  } catch (error) {
    if (turns.includes(turn)) showFailure(turn, error);
  }
  if (turns.includes(turn)) {
    endTurn(turn);
    storeConversation(conversation, turns);
  }
  if (running && running.turn === turn) running = null;
  setBusy(running !== null);
}

// Asks with the earlier turns; leaves out the oldest where they do not fit.
async function answer(turn, documents, earlier, signal) {
  const total = earlier.length;
  while (!turn.isWhole) {
    const history = earlier.flatMap((one) => [{ role: "user", content: one.question }, { role: "assistant", content: one.answer }]);
    const messages = [...history, { role: "user", content: turn.question }];
    try {
      Object.assign(turn, await askServer(messages, documents, signal, (event) => showEvent(turn, event)), { isWhole: true });
    } catch (error) {
      if (error.code !== "context_length_exceeded" || !earlier.length || turn.answer) throw error;
      earlier.shift();
    }
  }
  if (total > earlier.length) addNote(turn, `Asked without the first ${several(total - earlier.length, "question")} of this conversation, which no longer fit.`);
  showEvidence(turn);
}

function showEvent(turn, { text, reading }) {
  if (reading) {
    const [done, total] = reading;
    turn.progress.querySelector("span").textContent = `Reading: ${done.toLocaleString("en")} of ${several(total, "token")}`;
    Object.assign(turn.progress.querySelector("progress"), { max: total, value: done });
    return;
  }
  show(turn.progress, false);
  turn.answer += turn.answer ? text : text.trimStart();
  turn.text.textContent = safeText(turn.answer);
  keepInView(turn);
}

function addTurn(turn) {
  turns.push(turn);
  turn.progress = make("div", { class: "progress soft" }, make("progress", { "aria-label": "Progress" }), make("span", {}, "Looking for the answer…"));
  turn.text = make("p", { class: "answer", dir: "auto", "aria-live": "polite" });
  turn.below = make("div", { class: "below" });
  const question = make("h2", { class: "question", dir: "auto" }, safeText(turn.question));
  turn.element = make("li", { class: "turn", "aria-busy": "true" }, question, turn.progress, turn.text, turn.below);
  show(byId("welcome"), false);
  byId("turns").append(turn.element);
  keepInView(turn);
}

// Scrolls to the end of a turn, but not past its question.
function keepInView(turn) {
  const scroll = byId("scroll");
  scroll.scrollTop = Math.max(scroll.scrollTop, Math.min(turn.element.offsetTop - 12, scroll.scrollHeight - scroll.clientHeight));
}

function addNote(turn, text, kind = "note") {
  const sentence = text.charAt(0).toUpperCase() + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".");
  turn.below.append(make("p", { class: kind, dir: "auto", role: "status" }, safeText(sentence)));
}

function showFailure(turn, error) {
  turn.element.classList.add("broken");
  if (error.name === "AbortError") addNote(turn, "Stopped.");
  else if (error instanceof Refusal) addNote(turn, error.message, "note failed");
  else {
    addNote(turn, "This page has a bug; the browser's console has more.", "note failed");
    console.error(error);
  }
  box.value = box.value || turn.question;
  keepInView(turn);
}

function showEvidence(turn) {
  const isDoubtful = turn.found === false;
  turn.answer = turn.answer.trim();
  turn.text.replaceChildren(...markSentences(turn));
  if (isDoubtful && !turn.certainty) addNote(turn, "The documents may not contain the answer.", "note warning");
  const unsupported = (turn.sentences || []).flatMap((one) => one.missing);
  if (unsupported.length) addNote(turn, `Not in the passages: ${unsupported.join(", ")}.`, "note warning");
  const missing = turn.found === false || turn.certainty ? turn.missing_words || [] : [];
  if (missing.length) addNote(turn, `The documents asked never mention ${missing.slice(0, 3).map((word) => `"${word}"`).join(" or ")}.`);
  const languages = turn.certainty ? turn.foreign_languages || [] : [];
  if (languages.length) addNote(turn, `${turn.quotations.length ? "The quoted document is" : "There are passages"} in ${languages.join(" and ")}; the finder was trained mostly on English.`);
  if (turn.cut) addNote(turn, "The answer was cut at its longest allowed length.");
  for (const text of turn.missing || []) addNote(turn, text);
  const items = turn.evidence.map((passage, number) => make("li", {}, makePassage(turn, passage, number)));
  const title = several(items.length, isDoubtful || turn.certainty === "perhaps" ? "nearest passage" : "passage");
  turn.below.append(make("p", { class: "meta soft" }, title), make("ol", { class: "passages" }, ...items));
  keepInView(turn);
}

// Returns the answer as texts, and as underlined elements where no passage supports a sentence.
function markSentences({ answer, sentences = [] }) {
  const parts = [];
  let at = 0;
  for (const { start, end, missing } of sentences.filter((one) => !one.supported)) {
    const title = safeText(`Not in the passages: ${missing.join(", ")}`);
    parts.push(safeText(slice(answer, at, start)), make("span", { class: "unsupported", title }, safeText(slice(answer, start, end))));
    at = end;
  }
  return [...parts, safeText(slice(answer, at)) || (at ? "" : "(no text)")];
}

function makePassage(turn, passage, number) {
  const head = make("span", { class: "head" },
    make("span", { class: "number" }, String(number + 1)),
    make("bdi", { class: "name" }, safeName(passage.document)),
    make("span", { class: "soft" }, placeOf(passage)));
  const words = make("span", { class: "words", dir: "auto" }, ...quoteWords(turn.quotations, passage));
  return makeButton({ class: "passage" }, (event) => openPassage(turn, number, event.currentTarget), head, words);
}

// Returns the passage's text, with the quotations of the answer marked.
function quoteWords(quotations, passage) {
  const words = (start, end) => safeText(slice(passage.text, start, end).replace(/\s+/g, " "));
  const parts = [];
  let at = 0;
  for (const one of quotations.filter((one) => one.document === passage.document).sort((a, b) => a.start - b.start)) {
    const [start, end] = [one.start - passage.start, one.end - passage.start];
    if (start < at || one.end > passage.end) continue;
    const before = words(at, start);
    parts.push(at || before.length < 140 ? before : `… ${before.slice(-90).replace(/^\S*\s/, "")}`, make("mark", {}, words(start, end)));
    at = end;
  }
  return [...parts, words(at)];
}

// Adds what can be done with a turn to which nothing comes any more.
function endTurn(turn) {
  turn.element.setAttribute("aria-busy", "false");
  show(turn.progress, false);
  const again = makeButton({ title: "Ask this question about the documents that are chosen now" }, () => {
    const documents = namesOfChosen();
    byId("about").classList.toggle("missing", !documents.length);
    if (!running && documents.length) ask(turn.question, documents, turns.slice(0, turns.indexOf(turn)));
  }, "Ask again");
  // Browsers give the clipboard to pages of this machine and of https alone.
  const copy = makeButton({ title: "Copy the answer and its passages" }, async () => {
    await navigator.clipboard.writeText(describeTurn(turn));
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 2000);
  }, "Copy");
  turn.below.append(make("p", { class: "actions" }, ...(turn.isWhole && navigator.clipboard ? [copy] : []), again));
  keepInView(turn);
}

function describeTurn({ answer, evidence }) {
  const passages = evidence.map((one, number) => `[${number + 1}] ${one.document}, ${placeOf(one)}: ${one.text.replace(/\s+/g, " ").trim()}`);
  return [answer, ...passages].join("\n\n");
}

function unmarkPassages() {
  for (const button of document.querySelectorAll(".passage[aria-current]")) button.removeAttribute("aria-current");
}

// Opens the document at a passage.
function openPassage(turn, number, button) {
  const passage = turn.evidence[number];
  const heat = turn.heat.find((one) => one.document === passage.document);
  unmarkPassages();
  button.setAttribute("aria-current", "true");
  if (heat) showDocument({ id: heat.id, name: passage.document, from: button, turn, number }, passage.start, passage.end);
}

function setBusy(isBusy) {
  show(byId("send"), !isBusy);
  show(byId("stop"), isBusy);
}

function submit(event) {
  event.preventDefault();
  const question = box.value.trim();
  const documents = namesOfChosen();
  byId("about").classList.toggle("missing", !documents.length);
  if (!question || running || !documents.length) return;
  box.value = "";
  ask(question, documents);
}

function stop() {
  if (running) running.control.abort();
  box.focus();
}

function clearConversation(id) {
  stop();
  running = null;
  closeDocument();
  conversation = id;
  turns.length = 0;
  byId("turns").replaceChildren();
  show(byId("welcome"));
  box.focus();
}

function newConversation() {
  tryStorage(() => sessionStorage.removeItem(CURRENT));
  clearConversation(newId());
}

// Shows a stored conversation, which the next question continues.
function openConversation(stored) {
  clearConversation(stored.id);
  tryStorage(() => sessionStorage.setItem(CURRENT, stored.id));
  for (const row of stored.turns) {
    const turn = { ...row, isWhole: true };
    addTurn(turn);
    showEvidence(turn);
    endTurn(turn);
  }
}

box.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
});
byId("ask").addEventListener("submit", submit);
byId("stop").addEventListener("click", stop);
byId("new").addEventListener("click", newConversation);

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  if (shown) closeDocument();
  else stop();
});

async function begin() {
  box.focus();
  const current = tryStorage(() => sessionStorage.getItem(CURRENT));
  const stored = current && listConversations().find((one) => one.id === current);
  if (stored) openConversation(stored);
  await loadDocuments();
  const models = await getJson("/v1/models").catch(() => null); // the list has said what is wrong
  if (models) byId("model").textContent = safeName(models.data[0].id);
}

begin();
