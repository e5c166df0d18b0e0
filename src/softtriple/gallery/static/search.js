// Search by an image (chosen, dropped or pasted), by a text, or from an item of the gallery.

import { get, sendImage, sharpen } from "./api.js";
import { announce, count, errorBox, h } from "./dom.js";
import { growing, tiles } from "./tiles.js";

const INVITATIONS = {
  image: "Choose an image to find similar ones, or start from an item below.",
  text: "Enter a text to find similar ones, or start from an item below.",
  vector: "Choose an item below to find similar ones.",
};

let last = null; // the last query, its answer and class, shown again when coming back from an item

export async function searchPage(_, { about, signal }) {
  const results = h("section", { "aria-label": "Results", hidden: true });
  const own = classField(about.kind === "text" ? "text" : "image", signal, () => mark());
  // Mark the neighbours of another class than the query's, which may be given before or after the search.
  const mark = async () => {
    const className = await own.read();
    if (!last) return;
    last = { ...last, className };
    render(last, results);
  };
  let running = new AbortController();
  const search = async (query) => {
    running.abort(); // a late answer to an earlier query must not replace this one
    running = new AbortController();
    const stop = AbortSignal.any([signal, running.signal]);
    last = null;
    results.hidden = false;
    results.setAttribute("aria-busy", "true");
    results.replaceChildren(h("h2", {}, "Results"), h("p", { class: "loading" }, "Searching …"));
    try {
      last = { query, hits: (await query.call({ k: 24 }, stop)).hits, className: null };
      await mark();
      announce(`${count(last.hits.length, "neighbour")} found`);
      results.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    } catch (error) {
      if (stop.aborted) return;
      results.replaceChildren(h("h2", {}, "Results"), errorBox(error));
    }
    results.removeAttribute("aria-busy");
  };
  const forms = { image: () => imageForm(search, about.max_bytes, signal), text: () => textForm(search), vector: () => null };
  const form = forms[about.kind]();
  const page = h("div", {},
    h("h1", {}, "Find similar items"),
    h("p", { class: "lead" }, INVITATIONS[about.kind]),
    form && h("div", { class: "query" }, form, own.field),
    results, await gallery(signal));
  if (last) render(last, results);
  return page;
}

// The field for the class of the query; names are loaded when it gets the focus.
function classField(noun, signal, changed) {
  const list = h("datalist", { id: "class-names" });
  const hint = h("span", { role: "status" });
  let asked = null;
  const names = () => (asked ??= get("class-names", {}, signal).then((answer) => answer.class_names, () => null));
  const suggest = async () => {
    list.replaceChildren(...((await names()) ?? []).map((value) => h("option", { value })));
  };
  const input = h("input", { name: "class", list: "class-names", autocomplete: "off", placeholder: "unknown", value: last?.className, onfocus: suggest, onchange: changed });
  const read = async () => {
    const name = input.value.trim();
    const wrong = name !== "" && (await names())?.includes(name) === false;
    hint.textContent = wrong ? `No class “${name}” in the store.` : "";
    return wrong || name === "" ? null : name;
  };
  return { field: h("label", { class: "field" }, `Class of your ${noun} (optional): other classes get a red frame`, input, list, hint), read };
}

// A query is {call(parameters, signal), preview: () => an element}.
function render({ query, hits, className }, results) {
  const clear = () => {
    last = null;
    results.hidden = true;
    results.replaceChildren();
  };
  const marked = hits.map((hit) => ({ ...hit, same_class: className === null ? null : hit.item.class_name === className }));
  const agree = marked.filter((hit) => hit.same_class).length;
  const summary = className === null ? "" : `${agree} of ${count(hits.length, "neighbour")} have the class ${className}.`;
  results.hidden = false;
  results.replaceChildren(
    h("div", { class: "heading" }, h("h2", {}, "Results"), h("button", { type: "button", class: "quiet", onclick: clear }, "Clear")),
    h("div", { class: "answer" }, h("figure", { class: "asked" }, query.preview(), h("figcaption", {}, "Your query")),
      h("div", {}, summary && h("p", {}, summary),
        hits.length ? tiles(marked, "Neighbours, best first") : h("p", {}, "The store is empty."))));
}

function imageForm(search, most, signal) {
  const input = h("input", { type: "file", accept: "image/*", class: "covered", onchange: () => take(input.files) });
  const zone = h("label", { class: "drop" }, input,
    h("strong", {}, "Choose an image"), h("span", {}, "or drop it here, or paste it"));
  const take = (files) => {
    const [file] = files;
    if (file) search({ call: (parameters, stop) => send(file, parameters, stop), preview: () => preview(file) });
    input.value = "";
  };
  const send = async (file, parameters, stop) => {
    const [size, limit] = [file.size, most].map((bytes) => (bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 }));
    if (file.size > most) throw new Error(`the image has ${size} MB; the limit is ${limit} MB`);
    return sendImage(file, parameters, stop);
  };
  const over = (event) => {
    event.preventDefault();
    zone.classList.toggle("over", event.type === "dragover");
    if (event.type === "drop") take(event.dataTransfer.files);
  };
  // Anywhere on the page: an image dropped beside the zone would replace the page.
  for (const type of ["dragover", "dragleave", "drop"]) addEventListener(type, over, { signal });
  addEventListener("paste", (event) => take(event.clipboardData.files), { signal });
  return zone;
}

function preview(file) {
  const url = URL.createObjectURL(file);
  const image = h("img", { src: url, alt: `Your image, ${file.name}` });
  sharpen(image);
  image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
  return image;
}

function textForm(search) {
  const input = h("input", { type: "search", name: "text", required: true, maxlength: 4000 });
  const submit = (event) => {
    event.preventDefault();
    const text = input.value;
    search({ call: (parameters, stop) => get("search/text", { text, ...parameters }, stop), preview: () => h("p", { class: "text" }, text) });
  };
  return h("form", { class: "ask", onsubmit: submit }, h("label", { class: "field" }, "Text", input), h("button", {}, "Search"));
}

async function gallery(signal) {
  const load = (offset) => get("items", { offset }, signal);
  const first = await load(0);
  return h("section", {}, h("h2", {}, "All items"),
    first.total ? growing(first.items, first.total, "Items in the gallery", load) : h("p", {}, "The store is empty. Add items with: softtriple index RUN DATA --store URI"));
}
