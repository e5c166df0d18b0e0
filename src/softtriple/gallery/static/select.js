// Items chosen anywhere, and what can be done with them: tag, relabel, delete, export. Only if the server allows it.

import { get, post } from "./api.js";
import { csv, save } from "./csv.js";
import { announce, count, errorBox, h } from "./dom.js";

const chosen = new Map(); // item by id
let bar = null; // null: the gallery cannot be edited
let last = null; // what undo takes back

export const canSelect = () => bar !== null;

export async function startSelecting(refresh) {
  bar = h("section", { class: "bar", "aria-label": "Actions on selected items", hidden: true });
  bar.refresh = refresh;
  document.body.append(bar);
  last = (await get("edits")).last;
  render();
}

// A checkbox for an item.
export function checkbox(item, name) {
  const box = h("input", { type: "checkbox", class: "choose", "aria-label": `Select ${name}`, "data-id": item.id, onchange: () => {
    if (box.checked) chosen.set(item.id, item);
    else chosen.delete(item.id);
    render();
  } });
  box.checked = chosen.has(item.id);
  return box;
}

export function selectAll(items) {
  for (const item of items) chosen.set(item.id, item);
  render();
}

function clear() {
  chosen.clear();
  render();
}

function render(message = null) {
  for (const box of document.querySelectorAll(".choose")) box.checked = chosen.has(box.dataset.id);
  bar.hidden = !chosen.size && last === null && message === null;
  const act = (text, onclick, more = {}) => h("button", { type: "button", onclick, ...more }, text);
  bar.replaceChildren(
    ...(message ? [message] : []),
    ...(chosen.size ? [h("strong", {}, `${count(chosen.size, "item")} selected`),
      act("Tag…", () => ask("Tag", "Tag", (value) => edit("tag", value))),
      act("Relabel…", () => ask("Propose another class", "Class", (value) => edit("relabel", value), true)),
      act("Delete…", () => ask(`Delete ${count(chosen.size, "item")} from the store?`, null, () => edit("delete", ""))),
      act("Export CSV", exportCsv), act("Clear", clear, { class: "quiet" })] : []),
    ...(last === null ? [] : [h("span", { class: "undo" }, h("small", { class: "cut", title: last }, last), act("Undo", undo), act("Changes as CSV", download, { class: "quiet" }))]));
}

async function edit(action, value) {
  await send(() => post("edit", { action, ids: [...chosen.keys()], value }));
}

async function undo() {
  await send(() => post("undo", {}));
}

async function send(call) {
  try {
    const answer = await call();
    last = answer.last;
    chosen.clear();
    render();
    announce(answer.last ?? "undone");
    bar.refresh();
  } catch (error) {
    render(errorBox(error));
  }
}

// A small dialog: a question, and a field if `label` is given.
function ask(title, label, then, classes = false) {
  const list = h("datalist", { id: "edit-names" });
  const input = label && h("input", { required: true, maxlength: 1024, autocomplete: "off", list: classes ? "edit-names" : null });
  const dialog = h("dialog", { "aria-label": title },
    h("form", { method: "dialog", onsubmit: () => then(input ? input.value.trim() : "") }, h("h2", {}, title),
      input ? h("label", {}, label, input, list) : h("p", {}, "Undo puts them back."),
      h("div", { class: "buttons-row" }, h("button", { class: "main" }, label ? "Apply" : "Delete"), h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  if (classes) get("class-names").then((answer) => list.replaceChildren(...answer.class_names.map((value) => h("option", { value }))), () => {});
}

function exportCsv() {
  const rows = [...chosen.values()].map((item) => [item.id, item.proposed ?? item.class_name, item.class_name, (item.tags ?? []).join(" ")]);
  save("items.csv", csv([["item", "label", "before", "tags"], ...rows]));
}

async function download() {
  save("changes.csv", await get("changes.csv", {}, undefined, "text"));
}
