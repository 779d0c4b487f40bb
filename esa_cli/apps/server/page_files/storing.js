// Conversations that this browser keeps, each under a name of its own, until they are deleted.

const STORED = "esa-conversation-";
const KEEPS = "esa-keeps-conversations";
const MOST = 100; // conversations
const CURRENT = "esa-conversation";

const keepsConversations = () => tryStorage(() => localStorage.getItem(KEEPS)) !== "no";

// Returns the kept conversations, the newest first: id, time, title and turns.
function listConversations() {
  const keys = tryStorage(() => Object.keys(localStorage)) || [];
  const found = keys.filter((key) => key.startsWith(STORED)).map((key) => tryStorage(() => JSON.parse(localStorage.getItem(key))));
  return found.filter((one) => one && Array.isArray(one.turns)).sort((a, b) => b.time - a.time);
}

const FIELDS = ["question", "answer", "evidence", "quotations", "found", "certainty", "cut", "missing", "missing_words", "foreign_languages", "sentences"];

// Stores the answered turns of a conversation; the shades of heat maps are too large to be stored.
function storeConversation(id, turns) {
  const whole = turns.filter((one) => one.isWhole);
  if (!whole.length || !keepsConversations()) return;
  const rows = whole.map((turn) => ({
    ...Object.fromEntries(FIELDS.map((name) => [name, turn[name]])),
    heat: turn.heat.map((one) => ({ ...one, spans: [] })),
  }));
  const record = JSON.stringify({ id, time: Date.now(), title: whole[0].question.slice(0, 200), turns: rows });
  const others = listConversations().filter((one) => one.id !== id);
  while (others.length >= MOST) deleteConversation(others.pop().id);
  for (;;) {
    const isStored = tryStorage(() => (localStorage.setItem(STORED + id, record), true));
    if (isStored || !others.length) break;
    deleteConversation(others.pop().id); // the storage is full
  }
  tryStorage(() => sessionStorage.setItem(CURRENT, id));
}

const deleteConversation = (id) => tryStorage(() => localStorage.removeItem(STORED + id));

function showConversations() {
  const kept = listConversations();
  byId("kept").replaceChildren(...kept.map((one) => {
    const title = safeText(one.title);
    const open = makeButton({ class: "plain title", dir: "auto" }, () => {
      byId("conversations-dialog").close();
      openConversation(one);
    }, title, make("span", { class: "soft small" }, new Date(one.time).toLocaleString()));
    const remove = makeButton({ "aria-label": `Delete: ${title}`, title: "Delete" }, () => {
      deleteConversation(one.id);
      showConversations();
    }, "✕");
    return make("li", {}, open, remove);
  }));
  byId("keeps").checked = keepsConversations();
  show(byId("delete-all"), kept.length > 0);
  show(byId("none-kept"), !kept.length);
  if (!byId("conversations-dialog").open) byId("conversations-dialog").showModal();
}

byId("conversations").addEventListener("click", showConversations);
byId("conversations-close").addEventListener("click", () => byId("conversations-dialog").close());
byId("delete-all").addEventListener("click", () => {
  for (const one of listConversations()) deleteConversation(one.id);
  showConversations();
});
byId("keeps").addEventListener("change", () => {
  tryStorage(() => localStorage.setItem(KEEPS, byId("keeps").checked ? "yes" : "no"));
});
