// Search: a picture from outside (dropped, chosen or pasted), a text, or one of the gallery.

import { get, sendPicture, sharpen } from "./api.js";
import { announce, count, errorBox, h } from "./dom.js";
import { growing, tiles } from "./tiles.js";

const INVITATIONS = {
  image: "Choose a picture to see what is most similar to it, or begin with one of the gallery.",
  text: "Write a text to see what is most similar to it, or begin with one of the gallery.",
  vector: "Choose an item to see what is most similar to it.",
};

let last = null; // the query, what was found and the class that was said, still there when one comes back from an item

export async function searchPage(_, { about, signal }) {
  const results = h("section", { "aria-label": "Results", hidden: true });
  const own = classField(about.kind === "text" ? "text" : "picture", signal, () => mark());
  // Those of another class than the query's, if that was said: before the search or after it.
  const mark = async () => {
    const said = await own.read();
    if (!last) return;
    last = { ...last, said };
    render(last, results);
  };
  let running = new AbortController();
  const search = async (query) => {
    running.abort(); // what comes late from an earlier query must not replace this one's
    running = new AbortController();
    const stop = AbortSignal.any([signal, running.signal]);
    last = null;
    results.hidden = false;
    results.setAttribute("aria-busy", "true");
    results.replaceChildren(h("h2", {}, "Results"), h("p", { class: "loading" }, "Searching …"));
    try {
      last = { query, found: await query.call({ k: 24 }, stop), said: null };
      await mark();
      announce(`${count(last.found.hits.length, "neighbour")} found`);
      results.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    } catch (error) {
      if (stop.aborted) return;
      results.replaceChildren(h("h2", {}, "Results"), errorBox(error));
    }
    results.removeAttribute("aria-busy");
  };
  const forms = { image: () => pictureForm(search, about.max_bytes, signal), text: () => textForm(search), vector: () => null };
  const form = forms[about.kind]();
  const page = h("div", {},
    h("h1", {}, "Find what is similar"),
    h("p", { class: "lead" }, INVITATIONS[about.kind]),
    form && h("div", { class: "query" }, form, own.field),
    results, await gallery(signal));
  if (last) render(last, results);
  return page;
}

// The field for the class of the query; names are asked for when somebody is about to write one.
function classField(noun, signal, changed) {
  const list = h("datalist", { id: "class-names" });
  const hint = h("span", { role: "status" });
  let asked = null;
  const names = () => (asked ??= get("class-names", {}, signal).then((answer) => answer.class_names, () => null));
  const suggest = async () => {
    const found = (await names()) ?? [];
    list.replaceChildren(...found.map((value) => h("option", { value })));
  };
  const input = h("input", { name: "class", list: "class-names", autocomplete: "off", placeholder: "not known", value: last?.said, onfocus: suggest, onchange: changed });
  const read = async () => {
    const name = input.value.trim();
    const wrong = name !== "" && (await names())?.includes(name) === false;
    hint.textContent = wrong ? `There is no class “${name}” here.` : "";
    return wrong || name === "" ? null : name;
  };
  return { field: h("label", { class: "field" }, `Class of your ${noun} (optional): others get a red frame`, input, list, hint), read };
}

// A query is {call(parameters, signal), preview: () => an element}.
function render({ query, found, said }, results) {
  const clear = () => {
    last = null;
    results.hidden = true;
    results.replaceChildren();
  };
  const hits = found.hits.map((hit) => ({ ...hit, same_class: said === null ? null : hit.item.class_name === said }));
  const agree = hits.filter((hit) => hit.same_class).length;
  const told = said === null ? "" : `${agree} of ${count(hits.length, "neighbour")} of class ${said}.`;
  results.hidden = false;
  results.replaceChildren(
    h("div", { class: "heading" }, h("h2", {}, "Results"), h("button", { type: "button", class: "quiet", onclick: clear }, "Clear")),
    h("div", { class: "answer" }, h("figure", { class: "asked" }, query.preview(), h("figcaption", {}, "Your query")),
      h("div", {}, told && h("p", {}, told),
        hits.length ? tiles(hits, "Neighbours, best first") : h("p", {}, "The store is empty."))));
}

function pictureForm(search, most, signal) {
  const input = h("input", { type: "file", accept: "image/*", class: "covered", onchange: () => take(input.files) });
  const zone = h("label", { class: "drop" }, input,
    h("strong", {}, "Choose a picture"), h("span", {}, "or drop it here, or paste it with Ctrl+V"));
  const take = (files) => {
    const [file] = files;
    if (file) search({ call: (parameters, stop) => send(file, parameters, stop), preview: () => preview(file) });
    input.value = "";
  };
  const send = async (file, parameters, stop) => {
    const [size, limit] = [file.size, most].map((bytes) => (bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 }));
    if (file.size > most) throw new Error(`the picture has ${size} MB; at most ${limit} MB can be sent`);
    return sendPicture(file, parameters, stop);
  };
  const over = (event) => {
    event.preventDefault();
    zone.classList.toggle("over", event.type === "dragover");
    if (event.type === "drop") take(event.dataTransfer.files);
  };
  // Anywhere on the page: a picture that misses the zone would otherwise replace the page.
  for (const type of ["dragover", "dragleave", "drop"]) addEventListener(type, over, { signal });
  addEventListener("paste", (event) => take(event.clipboardData.files), { signal });
  return zone;
}

function preview(file) {
  const url = URL.createObjectURL(file);
  const image = h("img", { src: url, alt: `Your picture, ${file.name}` });
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
  return h("section", {}, h("h2", {}, "The gallery"),
    first.total ? growing(first.items, first.total, "Items of the gallery", load) : h("p", {}, "The store is empty: softtriple index fills it."));
}
