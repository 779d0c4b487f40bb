// The list of documents in groups, with a check box for each group and each document.

// Groups of documents: id, name, documents, and elements. A document has id, name, kind and folder,
// and its check box and list item once they are drawn.
let groups = [];
const chosen = new Set(); // ids of documents
const DRAWN = 300; // documents of a group that are drawn at once
const OPEN = 12; // a group with more documents is closed at first

const choose = (one, isChosen) => (isChosen ? chosen.add(one.id) : chosen.delete(one.id));
const allDocuments = () => groups.flatMap((group) => group.documents);
const isWhole = (group) => group.documents.every((one) => chosen.has(one.id));

// Returns the names by which a request means the chosen documents; a whole group has one name.
function namesOfChosen() {
  return groups.flatMap((group) => (isWhole(group) ? [group.id] : group.documents.filter((one) => chosen.has(one.id)).map((one) => one.id)));
}

async function loadDocuments() {
  try {
    const { data, groups: listed, left_out: leftOut, sending } = await getJson(`/v1/documents?session=${session}`);
    const isFirst = groups.length === 0;
    const whole = new Set(groups.filter(isWhole).map((group) => group.id));
    const wereOpen = new Map(groups.map((group) => [group.id, group.isOpen]));
    groups = listed.map((group) => ({ ...group, documents: data.filter((one) => one.group === group.id) }));
    for (const group of groups) group.isOpen = wereOpen.get(group.id) ?? group.documents.length <= OPEN;
    const known = new Set(data.map((one) => one.id));
    for (const id of [...chosen]) if (!known.has(id)) chosen.delete(id);
    const given = groups.find((group) => group.id === "esa:*");
    for (const group of groups) {
      if (isFirst ? !given || group === given : whole.has(group.id)) group.documents.forEach((one) => chosen.add(one.id));
    }
    sendingLimits = sending;
    show(byId("add"));
    show(byId("left-out"), leftOut.length > 0);
    byId("left-out").querySelector("ul").replaceChildren(...leftOut.map((text) => make("li", {}, safeName(text))));
    show(byId("filter"), data.length > 8);
    byId("list-note").textContent = data.length ? "" : "There is no document here yet: drop a file on this page, or start esa serve with documents, --allow or --library.";
    drawGroups();
  } catch (error) {
    byId("list-note").textContent = error.message;
  }
}

function drawGroups() {
  groups.forEach((group, index) => {
    const title = `group-${index}`;
    group.box = make("input", { type: "checkbox", id: title });
    group.box.addEventListener("change", () => {
      for (const one of matching(group)) choose(one, group.box.checked); // as the filter may hide some
      showChosen();
    });
    group.fold = makeButton({ class: "plain fold", "aria-label": `List the documents: ${safeName(group.name)}` }, () => {
      group.isOpen = !group.isOpen;
      drawItems(group);
    });
    const count = make("span", { class: "soft count" }, group.documents.length.toLocaleString("en"));
    const label = make("label", { for: title }, make("bdi", { class: "name" }, safeName(group.name)), count);
    group.items = make("ul", { "aria-label": safeName(group.name) });
    group.element = make("li", { class: "group" }, make("div", { class: "row head-row" }, group.box, label, group.fold), group.items);
    drawItems(group);
  });
  byId("list").replaceChildren(...groups.map((group) => group.element));
  showChosen();
}

function matching(group) {
  const words = byId("filter").value.trim().toLowerCase();
  return words ? group.documents.filter((one) => `${one.folder}/${one.name}`.toLowerCase().includes(words)) : group.documents;
}

// Draws the documents of an open group whose names match the filter; a filter opens every group.
function drawItems(group) {
  const found = matching(group);
  const isOpen = group.isOpen || Boolean(byId("filter").value.trim());
  group.fold.setAttribute("aria-expanded", String(isOpen));
  for (const one of group.documents) one.box = null;
  const items = isOpen ? found.slice(0, DRAWN).map((one) => makeItem(one, allDocuments().indexOf(one))) : [];
  if (isOpen && found.length > DRAWN) items.push(make("li", { class: "soft small rest" }, `and ${several(found.length - DRAWN, "document")} more: filter by name`));
  group.items.replaceChildren(...items);
  show(group.element, found.length > 0);
}

function makeItem(one, index) {
  one.box = make("input", { type: "checkbox", id: `document-${index}` });
  one.box.checked = chosen.has(one.id);
  one.box.addEventListener("change", () => {
    choose(one, one.box.checked);
    showChosen();
  });
  const name = safeName(one.name);
  const label = make("label", { for: one.box.id, title: safeName(one.folder ? `${one.folder}/${one.name}` : one.name) }, make("bdi", { class: "name" }, name));
  if (one.folder) label.append(make("bdi", { class: "folder soft" }, safeName(one.folder)));
  const open = (event) => showDocument({ id: one.id, name: one.name, from: event.currentTarget, turn: null, number: null }, 0, 1);
  const buttons = [makeButton({ "aria-label": `Open ${name}`, title: "Show the text" }, open, "›")];
  if (one.kind === "session") buttons.unshift(makeButton({ "aria-label": `Remove ${name}`, title: "Remove from this session" }, () => removeDocument(one), "✕"));
  return make("li", { class: "row" }, one.box, label, ...buttons);
}

function showChosen() {
  for (const group of groups) {
    const count = group.documents.filter((one) => chosen.has(one.id)).length;
    Object.assign(group.box, { checked: count === group.documents.length, indeterminate: count > 0 && count < group.documents.length });
    for (const one of group.documents) if (one.box) one.box.checked = chosen.has(one.id);
  }
  byId("about").textContent = describeChosen();
}

function describeChosen() {
  const listed = allDocuments();
  const picked = listed.filter((one) => chosen.has(one.id));
  const whole = groups.filter(isWhole);
  if (!picked.length) return "No document is chosen";
  if (picked.length === 1) return `About ${safeName(picked[0].name)}`;
  if (whole.length === 1 && whole[0].documents.length === picked.length && whole[0].id === "library:*") {
    return `About the whole library, ${several(picked.length, "document")}`;
  }
  return `About ${picked.length === listed.length ? "all " : ""}${several(picked.length, "document")}`;
}

byId("filter").addEventListener("input", () => groups.forEach(drawItems));
