// The conversation: questions, answers as they come, and the passages they rest on.

const NOT_TOLD = /^\W*(?:nothing (?:was )?found that answers|(?:the )?(?:given |provided )?(?:documents?|passages?|texts?) (?:do|does)(?: not|n['’]t) )/i;

// Each with question, answer, evidence, quotation, heat, element; `whole` if it was not stopped.
const turns = [];
let running = null;

async function ask(question, documents) {
  const turn = { question, answer: "", evidence: [], quotation: null, heat: [], buttons: [], whole: false };
  running = { turn, control: new AbortController() };
  turns.push(turn);
  addTurn(turn);
  setBusy(true);
  try {
    await answer(turn, documents, running.control.signal);
  } catch (error) {
    if (turns.includes(turn)) showFailure(turn, error);
  }
  turn.element.setAttribute("aria-busy", "false");
  show(turn.progress, false);
  if (running && running.turn === turn) running = null;
  setBusy(running !== null);
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
      break;
    } catch (error) {
      if (error.code !== "context_length_exceeded" || !earlier.length || turn.answer) throw error;
      earlier.shift();
    }
  }
  if (all > earlier.length) addNote(turn, `Asked without the first ${several(all - earlier.length, "question")} of this conversation, which no longer fit.`);
  showEvidence(turn);
}

function hear(turn, event) {
  if (event.reading) {
    const [done, total] = event.reading;
    turn.progress.querySelector("span").textContent = `Reading: ${count(done)} of ${several(total, "token")}`;
    Object.assign(turn.progress.querySelector("progress"), { max: total, value: done });
    return;
  }
  show(turn.progress, false);
  turn.answer += turn.answer ? event.text : event.text.trimStart();
  turn.text.textContent = safeText(turn.answer);
  keepInView(turn);
}

function addTurn(turn) {
  turn.progress = make("div", { class: "progress soft" }, make("progress", { "aria-label": "Progress" }), make("span", {}, "Looking for the answer…"));
  turn.text = make("p", { class: "answer", dir: "auto", "aria-live": "polite" });
  turn.below = make("div", { class: "below" });
  const question = make("h2", { class: "question", dir: "auto" }, safeText(turn.question));
  turn.element = make("li", { class: "turn", "aria-busy": "true" }, question, turn.progress, turn.text, turn.below);
  show(byId("welcome"), false);
  byId("turns").append(turn.element);
  keepInView(turn);
}

// The question stays in view, however long what is below it gets.
function keepInView(turn) {
  const box = byId("scroll");
  box.scrollTop = Math.max(box.scrollTop, Math.min(turn.element.offsetTop - 12, box.scrollHeight - box.clientHeight));
}

function addNote(turn, text, kind = "note") {
  turn.below.append(make("p", { class: kind, dir: "auto", role: "status" }, safeText(text)));
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
  setQuestion(byId("question").value || turn.question);
  keepInView(turn);
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
    make("ol", { class: "passages" }, ...turn.buttons.map((button) => make("li", {}, button))),
  );
  keepInView(turn);
}

function passageButton(turn, passage, number) {
  const head = make("span", { class: "head" },
    make("span", { class: "number" }, String(number + 1)),
    make("bdi", { class: "name" }, safeName(passage.document)),
    make("span", { class: "soft" }, placeOf(passage)));
  if (turn.found !== false) head.append(make("span", { class: "share soft", title: "How much it counts for the answer" }, `${Math.round(passage.weight * 100)} %`));
  const words = make("span", { class: "words", dir: "auto" }, ...quotedWords(turn.quotation, passage));
  const button = make("button", { type: "button", class: "passage" }, head, words);
  button.addEventListener("click", () => choosePassage(turn, number));
  return button;
}

// The passage's text, with the answer in it where it is a quotation.
function quotedWords(quotation, passage) {
  const words = (start, end) => safeText(slice(passage.text, start, end).replace(/\s+/g, " "));
  const isIn = quotation && quotation.document === passage.document && quotation.start >= passage.start && quotation.end <= passage.end;
  if (!isIn) return [words(0)];
  const [start, end] = [quotation.start - passage.start, quotation.end - passage.start];
  const before = words(0, start);
  return [before.length < 140 ? before : `… ${before.slice(-90)}`, make("mark", {}, words(start, end)), words(end)];
}

function choosePassage(turn, number, focus = true) {
  for (const one of document.querySelectorAll(".passage[aria-current]")) one.removeAttribute("aria-current");
  const button = turn.buttons[number];
  button.setAttribute("aria-current", "true");
  button.scrollIntoView({ block: "nearest" });
  openPassage(turn, number, button, focus);
}

// To the next or previous passage of the turn: in the document if it is open, else in the list.
function stepPassage(step) {
  const focused = document.activeElement.closest(".passage");
  const open = shown && shown.turn;
  const turn = open || turns.findLast((one) => one.buttons.length && (!focused || one.buttons.includes(focused)));
  if (!turn) return;
  const present = open ? shown.number : turn.buttons.indexOf(focused);
  const next = Math.min(Math.max(present + step, 0), turn.buttons.length - 1);
  if (open) choosePassage(turn, next, false);
  else turn.buttons[next].focus();
}
