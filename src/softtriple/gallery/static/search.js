// Search: a picture from outside (dropped, chosen or pasted), a text, or one of the gallery.

import { get, sendPicture, sharpen } from "./api.js";
import { announce, count, errorBox, h } from "./dom.js";
import { tiles } from "./tiles.js";

const INVITATIONS = {
  image: "Drop a picture to see what is most similar to it, or begin with one of the gallery.",
  text: "Write a text to see what is most similar to it, or begin with one of the gallery.",
  vector: "Choose an item to see what is most similar to it.",
};

let last = null; // the query and what was found, still there when one comes back from an item

export async function searchPage(_, { about, signal }) {
  const results = h("section", { "aria-label": "Results", hidden: true });
  const known = h("input", { name: "class", list: "class-names", autocomplete: "off", placeholder: "not known" });
  const search = (query) => run(query, known.value.trim(), results, signal);
  const forms = { image: () => pictureForm(search, signal), text: () => textForm(search), vector: () => null };
  const form = forms[about.kind]();
  const page = h("div", {},
    h("h1", {}, "Find what is similar"),
    h("p", { class: "lead" }, INVITATIONS[about.kind]),
    form && h("div", { class: "query" }, form, h("label", { class: "field" }, "Its class, to mark those of another", known, classNames(signal))),
    results, await gallery(signal));
  if (last) render(last, results);
  return page;
}

// A query is {call(parameters, signal), preview: () => an element}.
async function run(query, className, results, signal) {
  results.hidden = false;
  results.setAttribute("aria-busy", "true");
  results.replaceChildren(h("h2", {}, "Results"), h("p", { class: "loading" }, "Searching …"));
  try {
    const found = await query.call({ class: className, k: 24 }, signal);
    last = { query, found };
    render(last, results);
    announce(`${count(found.hits.length, "neighbour")} found`);
    results.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  } catch (error) {
    if (signal.aborted) return;
    last = null;
    results.replaceChildren(h("h2", {}, "Results"), errorBox(error));
  } finally {
    results.removeAttribute("aria-busy");
  }
}

function render({ query, found }, results) {
  const clear = () => {
    last = null;
    results.hidden = true;
    results.replaceChildren();
  };
  const agree = found.hits.filter((hit) => hit.same_class).length;
  const told = found.query_class === null ? "" : `${agree} of ${count(found.hits.length, "neighbour")} of class ${found.query_class}.`;
  results.hidden = false;
  results.replaceChildren(
    h("div", { class: "heading" }, h("h2", {}, "Results"), h("button", { type: "button", class: "quiet", onclick: clear }, "Clear")),
    h("div", { class: "answer" }, h("figure", { class: "asked" }, query.preview(), h("figcaption", {}, "Your query")),
      h("div", {}, told && h("p", {}, told),
        found.hits.length ? tiles(found.hits, "Neighbours, best first") : h("p", {}, "The store is empty."))));
}

function pictureForm(search, signal) {
  const input = h("input", { type: "file", accept: "image/*", class: "covered", onchange: () => take(input.files) });
  const zone = h("label", { class: "drop" }, input,
    h("strong", {}, "Choose a picture"), h("span", {}, "or drop it here, or paste it with Ctrl+V"));
  const take = (files) => {
    const [file] = files;
    if (file) search({ call: (parameters, stop) => sendPicture(file, parameters, stop), preview: () => preview(file) });
    input.value = "";
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

// Suggestions, which come when they come: classes take longer than the rest, and can be typed without.
function classNames(signal) {
  const list = h("datalist", { id: "class-names" });
  const fill = ({ classes }) => {
    const names = classes.map((one) => one.class_name).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    list.append(...names.map((value) => h("option", { value })));
  };
  get("classes", {}, signal).then(fill, () => null);
  return list;
}

async function gallery(signal) {
  const first = await get("items", {}, signal);
  const list = tiles(first.items, "Items of the gallery");
  let next = first.next_offset;
  const more = h("button", { type: "button", onclick: () => extend().catch((error) => more.replaceWith(errorBox(error))) }, "Show more");
  const extend = async () => {
    more.disabled = true;
    const page = await get("items", { offset: next }, signal);
    const added = [...tiles(page.items, "").children];
    list.append(...added);
    added[0].querySelector("a").focus({ preventScroll: true });
    next = page.next_offset;
    more.hidden = next === null;
    more.disabled = false;
  };
  more.hidden = next === null;
  return h("section", {}, h("h2", {}, "The gallery"), first.items.length ? list : h("p", {}, "The store is empty: softtriple index fills it."), more);
}
