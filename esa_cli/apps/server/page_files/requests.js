// Requests to the server that this page came from. The token, if there is one, is in a header, and
// in the storage of this tab; never in an address.

const TOKEN = "esa-token";
let token = "";

// Where storage is off, the token lives as long as the page.
function withStorage(use) {
  try {
    return use(sessionStorage);
  } catch {
    return null;
  }
}

token = withStorage((storage) => storage.getItem(TOKEN)) || "";

function keepToken(text) {
  token = text;
  withStorage((storage) => (text ? storage.setItem(TOKEN, text) : storage.removeItem(TOKEN)));
}

class Refusal extends Error {
  constructor(message, code = null) {
    super(message);
    this.code = code;
  }
}

// What the promise gives; a Refusal where the server cannot be reached.
async function reached(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("the server cannot be reached; is `esa serve` still running?");
  }
}

async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
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

let asked = null;

// Resolves when a token was typed; questions that wait for it share the dialog.
function askToken() {
  if (asked) return asked;
  if (token) byId("token-note").textContent = "The token is wrong. It is what `esa serve` was started with: --token, or $ESA_TOKEN.";
  keepToken("");
  asked = new Promise((resolve) => {
    byId("token-form").onsubmit = (event) => {
      event.preventDefault();
      const typed = byId("token").value.trim();
      if (!/^[\x21-\x7e]+$/.test(typed)) return;
      byId("token").value = "";
      keepToken(typed);
      byId("token-dialog").close();
      asked = null;
      resolve();
    };
    byId("token-dialog").showModal();
  });
  return asked;
}

byId("token-dialog").addEventListener("cancel", (event) => event.preventDefault());

async function json(path) {
  return (await send(path)).json();
}

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
  const response = await send("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
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
