// Requests to the server that this page came from. The token, if there is one, is in a header, and
// in the storage of this tab; never in an address.

const TOKEN = "esa-token";
const UNREACHED = "the server cannot be reached; is `esa serve` still running?";

let token = "";

// Where storage is off, the token lives as long as the page.
function keepToken(text) {
  token = text;
  try {
    sessionStorage.setItem(TOKEN, text);
  } catch {}
}

try {
  token = sessionStorage.getItem(TOKEN) || "";
} catch {}

class Refusal extends Error {
  constructor(message, code = null) {
    super(message);
    this.code = code;
  }
}

// What the promise gives; a Refusal where the server cannot be reached.
const reached = (promise) => promise.catch((error) => {
  throw error.name === "AbortError" ? error : new Refusal(UNREACHED);
});

async function send(path, options = {}) {
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const how = { cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" };
  const response = await reached(fetch(path, { ...options, headers, ...how }));
  if (response.ok) return response;
  if (response.status === 401) {
    await askToken();
    return send(path, options);
  }
  const body = await response.json().catch(() => ({}));
  const { message = `the server answered with status ${response.status}`, code = null } = body.error || {};
  throw new Refusal(message, code);
}

const json = async (path) => (await send(path)).json();

let typed = null;

// Resolves when a token was typed; questions that wait for it share the dialog.
function askToken() {
  if (typed) return typed;
  if (token) byId("token-note").textContent = "The token is wrong. It is what `esa serve` was started with: --token, or $ESA_TOKEN.";
  keepToken("");
  byId("token-dialog").showModal();
  typed = new Promise((resolve) => {
    byId("token-form").onsubmit = (event) => {
      event.preventDefault();
      const text = byId("token").value.trim();
      if (!/^[\x21-\x7e]+$/.test(text)) return;
      byId("token").value = "";
      keepToken(text);
      byId("token-dialog").close();
      typed = null;
      resolve();
    };
  });
  return typed;
}

byId("token-dialog").addEventListener("cancel", (event) => event.preventDefault());

// The blocks of a stream of events, in order.
async function* blocksOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const part = await reached(reader.read());
    if (part.done) return;
    const blocks = (rest + part.value).split("\n\n");
    rest = blocks.pop();
    yield* blocks;
  }
}

// One answer; `tell` gets {text} and {reading: [tokens, of]} as they come. Returns what the answer
// rests on.
async function askServer(messages, documents, signal, tell) {
  const body = { model: "esa", messages, stream: true, evidence: 5, heat: true };
  if (documents) body.documents = documents;
  const headers = { "Content-Type": "application/json" };
  const response = await send("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  let last = null;
  for await (const block of blocksOf(response)) {
    const reading = /^: reading (\d+) of (\d+)/.exec(block);
    if (reading) tell({ reading: [Number(reading[1]), Number(reading[2])] });
    if (block === "data: [DONE]") return last;
    if (!block.startsWith("data: ")) continue;
    const chunk = JSON.parse(block.slice(6));
    if (chunk.error) throw new Refusal(chunk.error.message, chunk.error.code);
    const choice = chunk.choices[0];
    if (choice && choice.delta.content) tell({ text: choice.delta.content });
    if (choice && choice.finish_reason) last = { ...chunk, cut: choice.finish_reason === "length" };
  }
  throw new Refusal("the answer broke off; is `esa serve` still running?");
}
