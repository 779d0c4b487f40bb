// The conversation: questions, answers as they come, and the passages they rest on.

const NOT_TOLD = /^\W*(?:nothing (?:was )?found that answers|(?:the )?(?:given |provided )?(?:documents?|passages?|texts?) (?:do|does)(?: not|n['’]t) )/i;

// Each with question, answer, evidence, quotation, heat, element; `whole` if it was not stopped.
const turns = [];
let running = null;

async function ask(question) {
  const documents = chosenDocuments();
  const none = documents !== null && documents.length === 0;
  byId("about").classList.toggle("missing", none);
  if (none) {
    announce("No document is chosen.");
    return false;
  }
  const turn = { question, answer: "", evidence: [], quotation: null, heat: [], whole: false };
  running = { turn, control: new AbortController() };
  const { signal } = running.control;
  turns.push(turn);
  addTurn(turn);
  setBusy(true);
  try {
    await answer(turn, documents, signal);
  } catch (error) {
    if (turns.includes(turn)) showFailure(turn, error);
  }
  turn.element.setAttribute("aria-busy", "false");
  show(turn.progress, false);
  if (running && running.turn === turn) running = null;
  setBusy(running !== null);
  return true;
}

// Asks with the earlier turns; leaves out the oldest where they do not fit.
async function answer(turn, documents, signal) {
  const earlier = turns.filter((one) => one.whole);
  const all = earlier.length;
  for (;;) {
    const history = earlier.flatMap((one) => [{ role: "user", content: one.question }, { role: "assistant", content: one.answer }]);
    const messages = [...history, { role: "user", content: turn.question }];
    try {
      Object.assign(turn, await askServer(messages, documents, signal, (event) => hear(turn, event)), { whole: true });
      if (all > earlier.length) addNote(turn, `Asked without the first ${several(all - earlier.length, "question")} of this conversation, which no longer fit.`);
      showEvidence(turn);
      return;
    } catch (error) {
      if (error.code !== "context_length_exceeded" || !earlier.length || turn.answer) throw error;
      earlier.shift();
    }
  }
}

function hear(turn, event) {
  if (event.reading) {
    const [done, total] = event.reading;
    turn.progress.querySelector("span").textContent = `Reading: ${count(done)} of ${several(total, "token")}`;
    Object.assign(turn.progress.querySelector("progress"), { max: total, value: done });
    return;
  }
  if (!turn.answer) show(turn.progress, false);
  turn.answer += turn.answer ? event.text : event.text.trimStart();
  turn.text.textContent = safeText(turn.answer);
  keepInView();
}

function addTurn(turn) {
  turn.progress = make("div", { class: "progress soft" }, make("progress", { "aria-label": "Progress" }), make("span", {}, "Looking for the answer…"));
  turn.text = make("p", { class: "answer", dir: "auto", "aria-live": "polite" });
  turn.below = make("div", { class: "below" });
  turn.element = make("li", { class: "turn", "aria-busy": "true" }, make("h2", { class: "question", dir: "auto" }, safeText(turn.question)), turn.progress, turn.text, turn.below);
  show(byId("welcome"), false);
  byId("turns").append(turn.element);
  byId("scroll").scrollTop = byId("scroll").scrollHeight;
}

function addNote(turn, text, kind = "note") {
  turn.below.append(make("p", { class: kind, dir: "auto", role: kind === "note failed" ? "alert" : null }, safeText(text)));
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".");

function showFailure(turn, error) {
  turn.element.classList.add("broken");
  if (error.name === "AbortError") addNote(turn, "Stopped.");
  else if (error instanceof Refusal) addNote(turn, sentence(error.message), "note failed");
  else {
    addNote(turn, "This page has a bug; the browser's console has more.", "note failed");
    console.error(error);
  }
  if (!byId("question").value) {
    byId("question").value = turn.question;
    fit();
  }
  keepInView();
}

function showEvidence(turn) {
  const missing = turn.found === false;
  turn.answer = turn.answer.trim();
  turn.text.textContent = safeText(turn.answer) || "(no text)";
  if (missing && !NOT_TOLD.test(turn.answer)) addNote(turn, "The documents may not contain the answer.", "note warning");
  if (turn.cut) addNote(turn, "The answer was cut at its longest allowed length.");
  for (const text of turn.missing || []) addNote(turn, sentence(text));
  turn.buttons = turn.evidence.map((passage, number) => passageButton(turn, passage, number));
  turn.below.append(
    make("p", { class: "meta soft" }, several(turn.evidence.length, missing ? "nearest passage" : "passage")),
    make("ol", { class: "passages", "aria-label": missing ? "The nearest passages" : "Passages the answer rests on" }, ...turn.buttons.map((button) => make("li", {}, button))),
  );
  announce(`Answered, with ${several(turn.evidence.length, "passage")}.`);
  keepInView();
}

function passageButton(turn, passage, number) {
  const [name, ...place] = placeOf(passage);
  const head = make("span", { class: "head" },
    make("span", { class: "number" }, String(number + 1)), make("bdi", { class: "name" }, name),
    make("span", { class: "soft" }, place.join(" · ")));
  if (turn.found !== false) head.append(make("span", { class: "share soft", title: "How much it counts for the answer" }, `${Math.round(passage.weight * 100)} %`));
  const button = make("button", { type: "button", class: "passage" }, head, make("span", { class: "words", dir: "auto" }, ...quotedWords(turn.quotation, passage)));
  button.addEventListener("click", () => choosePassage(turn, number));
  return button;
}

// The passage's text, with the answer in it where it is a quotation.
function quotedWords(quotation, passage) {
  const words = (text) => safeText(text.replace(/\s+/g, " "));
  if (!quotation || quotation.document !== passage.document || quotation.start < passage.start || quotation.end > passage.end) return [words(passage.text)];
  const [start, end] = [quotation.start - passage.start, quotation.end - passage.start];
  const before = words(slice(passage.text, 0, start));
  return [before.length < 140 ? before : `… ${before.slice(-90)}`, make("mark", {}, words(slice(passage.text, start, end))), words(slice(passage.text, end))];
}

function choosePassage(turn, number, focus = true) {
  for (const one of document.querySelectorAll(".passage[aria-current]")) one.removeAttribute("aria-current");
  const button = turn.buttons[number];
  button.setAttribute("aria-current", "true");
  button.scrollIntoView({ block: "nearest" });
  return openPassage(turn, number, button, focus);
}

// To the next or previous passage of the turn: in the document if it is open, else in the list.
function stepPassage(step) {
  const focused = document.activeElement.closest(".passage");
  const turn = shown && shown.turn ? shown.turn : turns.findLast((one) => one.buttons && one.buttons.length && (!focused || one.buttons.includes(focused)));
  if (!turn || !turn.buttons.length) return;
  const present = shown && shown.turn ? shown.number - 1 : turn.buttons.indexOf(focused);
  const next = Math.min(Math.max(present + step, 0), turn.buttons.length - 1);
  if (shown && shown.turn) choosePassage(turn, next, false);
  else turn.buttons[next].focus();
}

byId("previous").addEventListener("click", () => stepPassage(-1));
byId("next").addEventListener("click", () => stepPassage(1));

// The question stays in view, however long what is below it gets.
function keepInView() {
  if (!turns.length) return;
  const box = byId("scroll");
  const most = turns[turns.length - 1].element.offsetTop - 12;
  box.scrollTop = Math.max(box.scrollTop, Math.min(most, box.scrollHeight - box.clientHeight));
}

function newConversation() {
  stop();
  running = null;
  closeReading();
  turns.length = 0;
  byId("turns").replaceChildren();
  show(byId("welcome"));
  byId("question").focus();
  announce("New conversation.");
}
