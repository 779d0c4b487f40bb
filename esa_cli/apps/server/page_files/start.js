// The question box, keys, and the beginning.

const box = byId("question");

function fit() {
  box.rows = 1;
  box.rows = Math.min(8, Math.max(1, Math.round((box.scrollHeight - 16) / 24)));
}

function setBusy(busy) {
  show(byId("send"), !busy);
  show(byId("stop"), busy);
}

async function submit(event) {
  event.preventDefault();
  const question = box.value.trim();
  if (!question || running) return;
  box.value = "";
  fit();
  if (!(await ask(question)) && !box.value) {
    box.value = question;
    fit();
  }
}

function stop() {
  if (running) running.control.abort();
}

function escape() {
  if (document.body.classList.contains("choosing")) closeDocuments();
  else if (shown) closeReading();
  else if (running) stop();
  else box.blur();
}

box.addEventListener("input", fit);
box.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
});
byId("ask").addEventListener("submit", submit);
byId("stop").addEventListener("click", () => {
  stop();
  box.focus();
});
byId("new").addEventListener("click", newConversation);

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || byId("token-dialog").open) return;
  const typing = event.target.matches("textarea, input:not([type=checkbox])");
  const onPassage = event.target.closest(".passage") !== null;
  const steps = { j: 1, k: -1, ...(onPassage ? { ArrowDown: 1, ArrowUp: -1 } : {}) };
  if (event.key === "Escape") escape();
  if (typing || !(event.key === "/" || event.key in steps)) return;
  event.preventDefault();
  if (event.key === "/") box.focus();
  else stepPassage(steps[event.key]);
});

async function begin() {
  await loadDocuments();
  try {
    byId("model").textContent = safeName((await json("/v1/models")).data[0].id);
  } catch {
    // The list of documents has said what is wrong.
  }
  box.focus();
}

begin();
