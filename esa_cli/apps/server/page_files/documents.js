// The list of documents, and which of them a question is about.

const library = { all: [], chosen: new Set() };

const chosenOnes = () => library.all.filter((one) => library.chosen.has(one.id));

async function loadDocuments() {
  try {
    const { data, left_out: leftOut } = await json("/v1/documents");
    library.all = data;
    const given = data.filter((one) => one.kind === "given");
    for (const one of given.length ? given : data) library.chosen.add(one.id);
    show(byId("left-out"), leftOut.length > 0);
    byId("left-out").querySelector("ul").replaceChildren(...leftOut.map((text) => make("li", {}, safeName(text))));
    show(byId("filter"), data.length > 8);
    show(byId("choose-all"), data.length > 1);
    byId("list").replaceChildren(...data.map(documentItem));
    byId("list-note").textContent = data.length ? "" : "There is no document here: give some to `esa serve`, or files to a folder of --allow.";
    showChosen();
  } catch (error) {
    byId("list-note").textContent = error.message;
  }
}

// The ids a request names; null for all documents of the command line, which need no names.
function chosenDocuments() {
  const isGiven = (one) => one.kind === "given";
  const given = library.all.filter(isGiven);
  const chosen = chosenOnes();
  const plain = given.length > 0 && chosen.length === given.length && chosen.every(isGiven);
  return plain ? null : chosen.map((one) => one.id);
}

function documentItem(one, index) {
  const box = make("input", { type: "checkbox", id: `document-${index}` });
  box.checked = library.chosen.has(one.id);
  box.addEventListener("change", () => {
    if (box.checked) library.chosen.add(one.id);
    else library.chosen.delete(one.id);
    showChosen();
  });
  const name = safeName(one.kind === "file" ? one.id : one.name);
  const label = make("label", { for: box.id, title: name }, make("bdi", { class: "name" }, name));
  const open = make("button", { type: "button", class: "plain", "aria-label": `Open ${name}`, title: "Show the text" }, "›");
  open.addEventListener("click", () => openDocument(one.id, one.name, open));
  return make("li", { "data-name": name.toLowerCase() }, box, label, open);
}

function showChosen() {
  const chosen = chosenOnes();
  byId("choose-all").textContent = chosen.length === library.all.length ? "None" : "All";
  const text = chosen.length === 1 ? safeName(chosen[0].name) : several(chosen.length, "document");
  byId("about").textContent = chosen.length ? `About ${text}` : "No document is chosen";
}

byId("filter").addEventListener("input", () => {
  const words = byId("filter").value.trim().toLowerCase();
  for (const item of byId("list").children) show(item, item.dataset.name.includes(words));
});

byId("choose-all").addEventListener("click", () => {
  const boxes = [...byId("list").children].filter((item) => !item.hidden).map((item) => item.querySelector("input"));
  const all = boxes.every((box) => box.checked);
  for (const box of boxes) if (box.checked === all) box.click();
});

// On small screens the list is hidden until it is asked for.
function showDocumentList(open) {
  document.body.classList.toggle("choosing", open);
  byId("show-documents").setAttribute("aria-expanded", String(open));
  byId("show-documents").textContent = open ? "Done" : "Documents";
}

byId("show-documents").addEventListener("click", () => showDocumentList(!document.body.classList.contains("choosing")));
