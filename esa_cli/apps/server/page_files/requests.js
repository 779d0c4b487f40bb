// Requests to the server that this page came from. The token, if there is one, is in a header, and
// in the storage of this tab; never in an address.

const TOKEN = "esa-token";
let token = "";
try {
  token = sessionStorage.getItem(TOKEN) || "";
} catch {
  // Storage is off: the token lives as long as the page.
}

function keepToken(text) {
  token = text;
  try {
    if (text) sessionStorage.setItem(TOKEN, text);
    else sessionStorage.removeItem(TOKEN);
  } catch {
    // As above.
  }
}

class Refusal extends Error {
  constructor(message, code = null, status = 0) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

const UNREACHABLE = "the server cannot be reached; is `esa serve` still running?";

async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(UNREACHABLE);
  }
  if (response.ok) return response;
  let body = {};
  try {
    body = await response.json();
  } catch {
    // No JSON: the status says it.
  }
  const { message = `the server answered with status ${response.status}`, code = null } = body.error || {};
  if (response.status === 401) await askToken();
  if (response.status === 401) return send(path, options);
  throw new Refusal(message, code, response.status);
}

let asked = null;

// Resolves when a token was typed; questions that wait for it share the dialog.
function askToken() {
  if (asked) return asked;
  const dialog = byId("token-dialog");
  const wrong = Boolean(token);
  keepToken("");
  if (wrong) byId("token-note").textContent = "The token is wrong. It is what `esa serve` was started with: --token, or $ESA_TOKEN.";
  asked = new Promise((resolve) => {
    const done = (event) => {
      event.preventDefault();
      const typed = byId("token").value.trim();
      if (!/^[\x21-\x7e]+$/.test(typed)) return;
      byId("token-form").removeEventListener("submit", done);
      byId("token").value = "";
      keepToken(typed);
      dialog.close();
      asked = null;
      resolve();
    };
    byId("token-form").addEventListener("submit", done);
    dialog.showModal();
  });
  return asked;
}

byId("token-dialog").addEventListener("cancel", (event) => event.preventDefault());

async function json(path) {
  return (await send(path)).json();
}

// Events of a stream: {comment} and {data}, in order.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refusal(UNREACHABLE);
    }
    if (part.done) return;
    const blocks = (rest + part.value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith(":")) yield { comment: block.slice(1).trim() };
      else if (block.startsWith("data: ")) yield { data: block.slice(6) };
    }
  }
}

// One answer; `tell` gets {text} and {reading: [tokens, of]} as they come. Returns what the answer
// rests on.
async function askServer(messages, documents, signal, tell) {
  const body = { model: "esa", messages, stream: true, evidence: 5, heat: true };
  if (documents) body.documents = documents;
  const response = await send("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  let last = null;
  for await (const event of events(response)) {
    if (event.comment !== undefined) {
      const reading = /^reading (\d+) of (\d+)/.exec(event.comment);
      if (reading) tell({ reading: [Number(reading[1]), Number(reading[2])] });
      continue;
    }
    if (event.data === "[DONE]") return last;
    const chunk = JSON.parse(event.data);
    if (chunk.error) throw new Refusal(chunk.error.message, chunk.error.code);
    const choice = chunk.choices[0];
    if (choice && choice.delta.content) tell({ text: choice.delta.content });
    if (choice && choice.finish_reason) last = { ...chunk, cut: choice.finish_reason === "length" };
  }
  throw new Refusal("the answer broke off; is `esa serve` still running?");
}
