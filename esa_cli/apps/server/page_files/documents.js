// The list of documents, and which of them a question is about.

const library = { all: [], chosen: new Set() };

async function loadDocuments() {
  const note = byId("list-note");
  try {
    const found = await json("/v1/documents");
    const known = new Set(library.all.map((one) => one.id));
    library.all = found.data;
    const given = found.data.some((one) => one.kind === "given");
    for (const one of found.data) {
      if (!known.has(one.id) && (one.kind === "given" || !given)) library.chosen.add(one.id);
    }
    showLeftOut(found.left_out);
    listDocuments();
  } catch (error) {
    note.textContent = error.message;
    show(note);
  }
}

function showLeftOut(reasons) {
  const box = byId("left-out");
  show(box, reasons.length > 0);
  box.querySelector("ul").replaceChildren(...reasons.map((text) => make("li", {}, safeName(text))));
}

// The ids a request names; null for all documents of the command line, which need no names.
function chosenDocuments() {
  const chosen = library.all.filter((one) => library.chosen.has(one.id));
  const given = library.all.filter((one) => one.kind === "given");
  const plain = given.length > 0 && chosen.length === given.length && chosen.every((one) => one.kind === "given");
  return plain ? null : chosen.map((one) => one.id);
}

function listDocuments() {
  const many = library.all.length > 8;
  show(byId("filter"), many);
  show(byId("choose-all"), library.all.length > 1);
  byId("list").replaceChildren(...library.all.map(documentItem));
  filterDocuments();
  tellChosen();
}

function documentItem(one, index) {
  const box = make("input", { type: "checkbox", id: `document-${index}`, "data-id": one.id });
  box.checked = library.chosen.has(one.id);
  box.addEventListener("change", () => {
    if (box.checked) library.chosen.add(one.id);
    else library.chosen.delete(one.id);
    tellChosen();
  });
  const shown = safeName(one.kind === "file" ? one.id : one.name);
  const folder = shown.includes("/") ? shown.slice(0, shown.lastIndexOf("/") + 1) : "";
  const label = make("label", { for: box.id, title: shown },
    make("bdi", { class: "name" }, folder ? make("span", { class: "soft" }, folder) : "", shown.slice(folder.length)),
    make("span", { class: "size soft" }, bytes(one.bytes)));
  const open = make("button", { type: "button", class: "plain", "aria-label": `Open ${shown}`, title: "Show the text" }, "›");
  open.addEventListener("click", () => openDocument(one.id, one.name, open));
  return make("li", { "data-name": shown.toLowerCase() }, box, label, open);
}

function filterDocuments() {
  const words = byId("filter").value.trim().toLowerCase();
  for (const item of byId("list").children) show(item, item.dataset.name.includes(words));
}

function tellChosen() {
  const chosen = library.all.filter((one) => library.chosen.has(one.id));
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

byId("filter").addEventListener("input", filterDocuments);

byId("choose-all").addEventListener("click", () => {
  const shown = library.all.filter((one, index) => !byId("list").children[index].hidden);
  const all = shown.every((one) => library.chosen.has(one.id));
  for (const one of shown) {
    if (all) library.chosen.delete(one.id);
    else library.chosen.add(one.id);
  }
  for (const box of byId("list").querySelectorAll("input")) box.checked = library.chosen.has(box.dataset.id);
  tellChosen();
});

byId("show-documents").addEventListener("click", () => {
  const open = document.body.classList.toggle("choosing");
  nameToggle();
  if (open) {
    const first = byId("documents").querySelector("input:not([hidden])");
    if (first) first.focus();
  }
});
