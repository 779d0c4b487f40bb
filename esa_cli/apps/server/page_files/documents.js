// The list of documents, and which of them a question is about.

const library = { all: [], chosen: new Set() };

const chosenOnes = () => library.all.filter((one) => library.chosen.has(one.id));

async function loadDocuments() {
  try {
    const found = await json("/v1/documents");
    library.all = found.data;
    const given = found.data.filter((one) => one.kind === "given");
    for (const one of given.length ? given : found.data) library.chosen.add(one.id);
    show(byId("left-out"), found.left_out.length > 0);
    byId("left-out").querySelector("ul").replaceChildren(...found.left_out.map((text) => make("li", {}, safeName(text))));
    show(byId("filter"), library.all.length > 8);
    show(byId("choose-all"), library.all.length > 1);
    byId("list").replaceChildren(...library.all.map(documentItem));
    tellChosen();
  } catch (error) {
    byId("list-note").textContent = error.message;
  }
}

// The ids a request names; null for all documents of the command line, which need no names.
function chosenDocuments() {
  const given = library.all.filter((one) => one.kind === "given");
  const chosen = chosenOnes();
  const plain = given.length > 0 && chosen.length === given.length && chosen.every((one) => one.kind === "given");
  return plain ? null : chosen.map((one) => one.id);
}

function documentItem(one, index) {
  const box = make("input", { type: "checkbox", id: `document-${index}` });
  box.checked = library.chosen.has(one.id);
  box.addEventListener("change", () => {
    if (box.checked) library.chosen.add(one.id);
    else library.chosen.delete(one.id);
    tellChosen();
  });
  const name = safeName(one.kind === "file" ? one.id : one.name);
  const label = make("label", { for: box.id, title: name }, make("bdi", { class: "name" }, name), make("span", { class: "size soft" }, bytes(one.bytes)));
  const open = make("button", { type: "button", class: "plain", "aria-label": `Open ${name}`, title: "Show the text" }, "›");
  open.addEventListener("click", () => openDocument(one.id, one.name, open));
  return make("li", { "data-name": name.toLowerCase() }, box, label, open);
}

function tellChosen() {
  const chosen = chosenOnes();
  const note = byId("list-note");
  note.textContent = library.all.length ? "" : "There is no document here: give some to `esa serve`, or files to a folder of --allow.";
  show(note, note.textContent !== "");
  byId("choose-all").textContent = chosen.length === library.all.length ? "None" : "All";
  const text = chosen.length === 1 ? safeName(chosen[0].name) : several(chosen.length, "document");
  byId("about").textContent = chosen.length ? `About ${text}` : "No document is chosen";
  nameToggle();
}

// On small screens: what opens the list also closes it.
function nameToggle() {
  const open = document.body.classList.contains("choosing");
  byId("show-documents").setAttribute("aria-expanded", String(open));
  byId("show-documents").textContent = open ? "Done" : `Documents (${library.chosen.size})`;
}

byId("filter").addEventListener("input", () => {
  const words = byId("filter").value.trim().toLowerCase();
  for (const item of byId("list").children) show(item, item.dataset.name.includes(words));
});

byId("choose-all").addEventListener("click", () => {
  const items = [...byId("list").children].filter((item) => !item.hidden);
  const boxes = items.map((item) => item.querySelector("input"));
  const all = boxes.every((box) => box.checked);
  for (const box of boxes) if (box.checked === all) box.click();
});

byId("show-documents").addEventListener("click", () => {
  document.body.classList.toggle("choosing");
  nameToggle();
});
