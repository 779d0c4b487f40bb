// Documents that are dropped on the page or chosen in a dialog, and sent to the server.

// What the server says of documents that are sent: the bytes of the largest, and where they may be
// kept: "session", "library".
let sendingLimits = { bytes: 0, keep: ["session"] };
let waiting = []; // files for which the dialog asks where to keep them

function offerFiles(files) {
  waiting = [...files];
  if (!waiting.length) return;
  if (sendingLimits.keep.length === 1) sendFiles(sendingLimits.keep[0]);
  else {
    byId("keep-title").textContent = `Add ${waiting.length === 1 ? safeName(waiting[0].name) : several(waiting.length, "file")}`;
    byId("keep-dialog").showModal();
  }
}

async function sendFiles(keep) {
  const files = waiting;
  waiting = [];
  const failures = [];
  const added = [];
  for (const [number, file] of files.entries()) {
    byId("adding").textContent = `Adding ${safeName(file.name)}${files.length > 1 ? ` (${number + 1} of ${files.length})` : ""}…`;
    try {
      if (file.size > sendingLimits.bytes) throw new Refusal(`${file.name} is larger than ${sendingLimits.bytes.toLocaleString("en")} bytes`);
      const query = new URLSearchParams({ name: file.name, keep, session });
      // A folder has no bytes to read.
      const body = await file.arrayBuffer().catch(() => Promise.reject(new Refusal(`${file.name} cannot be read; is it a folder?`)));
      const headers = { "Content-Type": "application/octet-stream" };
      added.push((await (await send(`/v1/documents?${query}`, { method: "POST", headers, body })).json()).id);
    } catch (error) {
      failures.push(error.message);
    }
  }
  byId("adding").textContent = "";
  byId("adding-failures").replaceChildren(...failures.map((text) => make("li", {}, safeName(`not added: ${text}`))));
  await loadDocuments();
  if (!added.length) return;
  // Who drops a file asks about this file; the library has its documents among all others.
  if (keep === "session") {
    chosen.clear();
    allDocuments().filter((one) => one.kind === "session").forEach((one) => chosen.add(one.id));
  } else added.forEach((id) => chosen.add(id));
  showChosen();
  box.focus();
}

async function removeDocument(one) {
  await send(`/v1/documents?${new URLSearchParams({ document: one.id })}`, { method: "DELETE" }).catch((error) => {
    byId("adding").textContent = error.message;
  });
  if (shown && shown.id === one.id) closeDocument();
  await loadDocuments();
}

const hasFiles = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");

for (const kind of ["dragenter", "dragover"]) {
  addEventListener(kind, (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    show(byId("drop"));
  });
}

byId("drop").addEventListener("dragleave", () => show(byId("drop"), false));
addEventListener("drop", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  show(byId("drop"), false);
  if (!byId("token-dialog").open && !byId("keep-dialog").open) offerFiles(event.dataTransfer.files);
});

byId("add").addEventListener("click", () => byId("files").click());
byId("files").addEventListener("change", () => {
  offerFiles(byId("files").files);
  byId("files").value = "";
});
byId("keep-dialog").addEventListener("cancel", () => (byId("keep-dialog").returnValue = ""));
byId("keep-dialog").addEventListener("close", () => {
  if (byId("keep-dialog").returnValue) sendFiles(byId("keep-dialog").returnValue);
});
