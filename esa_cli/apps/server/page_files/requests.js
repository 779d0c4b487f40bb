// Elements made of texts, and requests to the server that this page came from.

const byId = (id) => document.getElementById(id);

// Characters that are invisible or change the text around them: controls, and marks that turn the
// direction of writing.
const NAME_CONTROLS = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const TEXT_CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202d\u202e]/g;

const safeName = (text) => String(text).replace(NAME_CONTROLS, "\ufffd");
const safeText = (text) => String(text).replace(TEXT_CONTROLS, "\ufffd");

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function makeButton(attributes, press, ...children) {
  const button = make("button", { type: "button", class: "plain", ...attributes }, ...children);
  button.addEventListener("click", press);
  return button;
}

function show(element, shown = true) {
  element.hidden = !shown;
}

const several = (number, noun) => `${Number(number).toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

// Returns a part of a text by code points, as Python counts; JavaScript counts UTF-16 units.
const slice = (text, start, end) => Array.from(text).slice(start, end).join("");

const TABLE = /\.(csv|tsv|tab|xl[st][xm]|o[dt]s)$/i;

function placeOf({ document, page, line, chapter, title, link }) {
  const unit = TABLE.test(document) ? "row" : "line";
  const parts = [page === null ? "" : `page ${page.toLocaleString("en")}`, `${unit} ${line.toLocaleString("en")}`];
  return [...parts, ...[title, chapter, link].map((name) => safeName(name || ""))].filter(Boolean).join(" · ");
}

// A storage that is off or full is no error: what is stored lives as long as the page.
function tryStorage(use) {
  try {
    return use();
  } catch {
    return null;
  }
}

// The token is sent in a header and stored for this tab alone; never in an address.
const TOKEN = "esa-token";
let token = tryStorage(() => sessionStorage.getItem(TOKEN)) || "";

// The random name under which the server keeps the documents that this tab sends.
const SESSION = "esa-session";
const session = tryStorage(() => sessionStorage.getItem(SESSION)) || crypto.getRandomValues(new Uint32Array(4)).join("-");
tryStorage(() => sessionStorage.setItem(SESSION, session));

class Refusal extends Error {
  constructor(message, code = null) {
    super(message);
    this.code = code;
  }
}

const refuseUnreached = (error) => {
  throw error.name === "AbortError" ? error : new Refusal("the server cannot be reached; is `esa serve` still running?");
};

async function send(path, options = {}) {
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const how = { cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" };
  const response = await fetch(path, { ...options, headers, ...how }).catch(refuseUnreached);
  if (response.ok) return response;
  if (response.status === 401) {
    await askToken();
    return send(path, options);
  }
  const { error } = await response.json().catch(() => ({}));
  throw new Refusal(error ? error.message : `the server answered with status ${response.status}`, error && error.code);
}

const getJson = async (path) => (await send(path)).json();

let typing = null;

// Returns a promise that ends when a token was typed; requests that wait for it share the dialog.
function askToken() {
  if (typing) return typing;
  if (token) byId("token-note").textContent = "The token is wrong. It is what `esa serve` was started with: --token, or $ESA_TOKEN.";
  byId("token-dialog").showModal();
  typing = new Promise((resolve) => {
    byId("token-form").onsubmit = (event) => {
      event.preventDefault();
      const text = byId("token").value.trim();
      if (!/^[\x21-\x7e]+$/.test(text)) return;
      token = text;
      tryStorage(() => sessionStorage.setItem(TOKEN, token));
      byId("token").value = "";
      byId("token-dialog").close();
      typing = null;
      resolve();
    };
  });
  return typing;
}

byId("token-dialog").addEventListener("cancel", (event) => event.preventDefault());

// Asks one question; calls `tell` with {text} and {reading: [tokens, total]} as they come. Returns
// the last chunk, which has the evidence.
async function askServer(messages, documents, signal, tell) {
  const body = { model: "esa", messages, stream: true, evidence: 5, heat: true, documents };
  const headers = { "Content-Type": "application/json" };
  const response = await send("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let last = null;
  let rest = "";
  for (;;) {
    const part = await reader.read().catch(refuseUnreached);
    if (part.done) throw new Refusal("the answer broke off; is `esa serve` still running?");
    const blocks = (rest + part.value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const reading = /^: reading (\d+) of (\d+)/.exec(block);
      if (reading) tell({ reading: [Number(reading[1]), Number(reading[2])] });
      if (block === "data: [DONE]") return last;
      if (!block.startsWith("data: ")) continue;
      const chunk = JSON.parse(block.slice(6));
      if (chunk.error) throw new Refusal(chunk.error.message, chunk.error.code);
      const choice = chunk.choices[0];
      if (choice && choice.delta.content) tell({ text: choice.delta.content });
      if (!choice || !choice.finish_reason) continue;
      const isShown = (one, index) => !chunk.certainty || chunk.shown.includes(index + 1); // else [2] may be cited
      last = { ...chunk, evidence: chunk.evidence.filter(isShown), cut: choice.finish_reason === "length" };
    }
  }
}
