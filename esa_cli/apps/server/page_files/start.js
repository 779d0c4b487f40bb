// The question box, keys, and the beginning.

const box = byId("question");

function fit() {
  box.rows = 1;
  box.rows = Math.min(8, Math.max(1, Math.round((box.scrollHeight - 16) / 24)));
}

function setQuestion(text) {
  box.value = text;
  fit();
}

function setBusy(busy) {
  show(byId("send"), !busy);
  show(byId("stop"), busy);
}

function submit(event) {
  event.preventDefault();
  const question = box.value.trim();
  const documents = chosenDocuments();
  const none = documents !== null && !documents.length;
  byId("about").classList.toggle("missing", none);
  if (!question || running || none) return;
  setQuestion("");
  ask(question, documents);
}

function stop() {
  if (running) running.control.abort();
  box.focus();
}

function newConversation() {
  stop();
  running = null;
  closeReading();
  turns.length = 0;
  byId("turns").replaceChildren();
  show(byId("welcome"));
  box.focus();
}

function escape() {
  if (document.body.classList.contains("choosing")) showDocumentList(false);
  else if (shown) closeReading();
  else if (running) stop();
  else box.blur();
}

box.addEventListener("input", fit);
box.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
});
byId("ask").addEventListener("submit", submit);
byId("stop").addEventListener("click", stop);
byId("new").addEventListener("click", newConversation);

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || byId("token-dialog").open) return;
  const typing = event.target.matches("textarea, input:not([type=checkbox])");
  const arrows = event.target.closest(".passage") ? { ArrowDown: 1, ArrowUp: -1 } : {};
  const steps = { j: 1, k: -1, ...arrows };
  if (event.key === "Escape") escape();
  if (typing || !(event.key === "/" || event.key in steps)) return;
  event.preventDefault();
  if (event.key === "/") box.focus();
  else stepPassage(steps[event.key]);
});

async function begin() {
  box.focus();
  await loadDocuments();
  const models = await json("/v1/models").catch(() => null); // the list has said what is wrong
  if (models) byId("model").textContent = safeName(models.data[0].id);
}

begin();
