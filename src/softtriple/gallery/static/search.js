// Search by images (chosen, photographed, dropped or pasted), by texts, or from an item of the gallery.

import { get, sendImage, sharpen } from "./api.js";
import { crop } from "./crop.js";
import { announce, breakable, classLink, cosine, count, digitsApart, emptyStore, errorBox, h, percent, remember } from "./dom.js";
import { growing, likely, numbers, tiles } from "./tiles.js";

const INVITATIONS = {
  image: "Choose images to find similar ones, or start from an item below.",
  text: "Enter a text to find similar ones, or start from an item below.",
  vector: "Choose an item below to find similar ones.",
};
const NEIGHBOURS = { one: 24, several: 12 };
const MOST = 20; // queries at once

let last = null; // the last queries with their answers, and the class: shown again when coming back from an item

// A query is {name, call(parameters, signal), preview(): an element, file (of an image)}.
export async function searchPage(_, { about, signal, parameters }) {
  const results = h("section", { "aria-label": "Results", hidden: true });
  const noun = about.kind === "text" ? "text" : "image";
  const fields = classFields(noun, { signal, parameters }, () => render(), () => last && search(last.answers.map(({ query }) => query)));
  let running = new AbortController();
  const search = async (queries) => {
    running.abort(); // a late answer to an earlier query must not replace this one
    running = new AbortController();
    const stop = AbortSignal.any([signal, running.signal]);
    const asked = queries.slice(0, MOST);
    const k = asked.length > 1 ? NEIGHBOURS.several : NEIGHBOURS.one;
    last = null;
    results.hidden = false;
    results.setAttribute("aria-busy", "true");
    const answers = [];
    for (const query of asked) {
      results.replaceChildren(h("h2", {}, "Results"), h("p", { class: "loading" }, asked.length > 1 ? `Searching… ${answers.length + 1} of ${asked.length}` : "Searching…"));
      try {
        const only = (await fields.only()) ?? undefined;
        answers.push({ ...(await query.call({ k, only }, stop)), query, only });
      } catch (error) {
        if (stop.aborted) return;
        answers.push({ query, error });
      }
    }
    last = { answers, left: queries.length - asked.length };
    await render();
    const neighbours = answers.reduce((sum, { hits }) => sum + (hits?.length ?? 0), 0);
    announce(`${count(neighbours, "neighbour")} found${answers.length > 1 ? ` for ${answers.length} queries` : ""}${doubt(answers)}`);
    results.removeAttribute("aria-busy");
    results.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  };
  const render = async () => {
    const className = await fields.own();
    if (!last) return;
    const clear = () => {
      last = null;
      remember({ text: null });
      results.hidden = true;
      results.replaceChildren();
    };
    const hits = last.answers.flatMap((answer) => answer.hits ?? []);
    results.hidden = false;
    results.replaceChildren(
      h("div", { class: "heading" }, h("h2", {}, "Results"), h("button", { type: "button", class: "quiet", onclick: clear }, "Clear")),
      ...last.answers.map((answer) => show(answer, className, search)),
      ...(last.left ? [h("p", { class: "hint" }, `Only the first ${MOST} were searched; ${last.left} were left out.`)] : []),
      ...(hits.length ? [h("p", { class: "hint" }, numbers(hits))] : []));
  };
  const forms = { image: () => imageForm(search, about.max_bytes, signal), text: () => textForm(search, parameters.get("text")), vector: () => null };
  const form = forms[about.kind]();
  const page = h("div", {},
    h("h1", {}, "Find similar items"),
    h("p", { class: "lead" }, INVITATIONS[about.kind]),
    form && h("div", { class: "query" }, form, fields.element),
    results, await gallery(signal));
  // A text is in the address, so that a link or a reload asks for it again; images are not.
  if (about.kind === "text" && parameters.has("text") && !last) form.ask();
  else await render();
  return page;
}

// Fields for the class of the query and for the class to search in; names are loaded when one gets the focus.
function classFields(noun, { signal, parameters }, marked, filtered) {
  const list = h("datalist", { id: "class-names" });
  let asked = null;
  const names = () => (asked ??= get("class-names", {}, signal).then((answer) => answer.class_names, () => null));
  const suggest = async () => list.replaceChildren(...((await names()) ?? []).map((value) => h("option", { value })));
  const field = (key, label, placeholder, changed, title = null) => {
    const hint = h("span", { role: "status" });
    const input = h("input", { list: "class-names", autocomplete: "off", placeholder, title, value: parameters.get(key), onfocus: suggest, onchange: () => {
      remember({ [key]: input.value.trim() || null });
      changed();
    } });
    const read = async () => {
      const name = input.value.trim();
      const wrong = name !== "" && (await names())?.includes(name) === false;
      hint.textContent = wrong ? `No class “${name}” in the store.` : "";
      return wrong || name === "" ? null : name;
    };
    return { element: h("label", { class: "field" }, label, input, hint), read };
  };
  const own = field("class", `Class of your ${noun}`, "if known", marked, "Neighbours of other classes are then marked in red");
  const only = field("only", "Search only in class", "all classes", filtered);
  return { element: h("div", { class: "fields" }, own.element, only.element, list), own: own.read, only: only.read };
}

function show({ query, hits, error, ...answer }, className, search) {
  const marked = (hits ?? []).map((hit) => ({ ...hit, same_class: className === null ? null : hit.item.class_name === className }));
  const agree = marked.filter((hit) => hit.same_class).length;
  const summary = className === null || !marked.length ? "" : `${agree} of ${count(marked.length, "neighbour")} have the class ${className}.`;
  const region = query.file && !error ? h("button", { type: "button", onclick: () => crop(query.file, (file) => search([query.again(file)])).catch(() => region.replaceWith(h("small", {}, "This browser cannot show the image."))) }, "Search a region") : null;
  return h("div", { class: "answer" },
    h("figure", { class: "asked" }, query.preview(), query.file ? h("figcaption", {}, h("span", { class: "cut", title: query.name }, query.name), region) : null),
    h("div", {}, error ? errorBox(error) : verdict(marked, answer), summary && h("p", {}, summary),
      marked.length ? tiles(marked, "Neighbours, best first", { digits: digitsOf(answer, marked) }) : error ? null : h("p", {}, "Nothing found: the store has no items here.")));
}

// As many digits as it takes to see that the best match is below the threshold.
const digitsOf = ({ known, threshold }, hits) => (known === false ? digitsApart(hits[0].score, threshold) : 3);

// What the neighbours say together: the likely class, or none of these. Within one class there is nothing to vote on.
function verdict(hits, { known, threshold, vote, by_centers: center, only }) {
  if (known === false && hits.length) {
    return h("p", { class: "verdict none" }, h("strong", {}, "Probably none of these."), ` The best match scores ${cosine(hits[0].score, digitsOf({ known, threshold }, hits))}; a match scores at least ${cosine(threshold, digitsOf({ known, threshold }, hits))}, by the calibration of this run.`);
  }
  if (!vote || only) return null;
  const link = (name) => h("a", { href: classLink(name) }, breakable(name));
  const voters = hits.filter((hit) => hit.item.class_name === vote.class_name);
  const sure = known ? `Probability ${likely(voters[0].probability)}; ` : "";
  return h("p", { class: "verdict" }, h("strong", {}, "Predicted class: ", link(vote.class_name), "."),
    ` ${sure}${voters.length} of ${count(hits.length, "neighbour")} vote for it, `,
    h("span", { class: "explained", title: `A neighbour's vote weighs as much as its ${known ? "probability" : "score"}.` }, `with ${percent(vote.score)} of the weight`), ".",
    center ? (center.class_name === vote.class_name ? " The nearest centre agrees." : [" Among the trained classes, the nearest centre is that of ", link(center.class_name), "."]) : null,
    known ? null : " This run is not calibrated, so it cannot tell whether the query is any of these at all.");
}

function doubt(answers) {
  const unknown = answers.filter(({ known }) => known === false).length;
  if (!unknown) return "";
  return answers.length > 1 ? `; for ${unknown} of them none is similar enough` : ", but none is similar enough";
}

function imageForm(search, most, signal) {
  const query = (file) => ({ name: file.name, file, again: query, call: (parameters, stop) => send(file, parameters, stop), preview: () => preview(file) });
  const take = (files) => {
    if (files.length) search([...files].map(query));
  };
  const picker = (options) => {
    const input = h("input", { type: "file", accept: "image/*", class: "covered", ...options, onchange: () => {
      take([...input.files]);
      input.value = "";
    } });
    return input;
  };
  const zone = h("label", { class: "drop" }, picker({ multiple: true }),
    h("strong", {}, "Choose images"), h("span", {}, "or drop them here, or paste one"));
  const camera = h("label", { class: "drop camera" }, picker({ capture: "environment" }), h("strong", {}, "Take a photo"));
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
  return h("div", { class: "drops" }, zone, camera);
}

function preview(file) {
  const url = URL.createObjectURL(file);
  const image = h("img", { src: url, alt: `Your image, ${file.name}` });
  sharpen(image);
  for (const type of ["load", "error"]) image.addEventListener(type, () => URL.revokeObjectURL(url), { once: true });
  image.addEventListener("error", () => image.replaceWith(h("span", { class: "text name" }, "no preview")));
  return image;
}

function textForm(search, given) {
  const input = h("textarea", { name: "text", required: true, rows: 2, maxlength: 20_000, title: "Enter searches; Shift and Enter start a new line", onkeydown: (event) => {
    // Without a keyboard there is no Shift and Enter for a new line.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || matchMedia("(hover: none)").matches) return;
    event.preventDefault();
    form.requestSubmit();
  } });
  const query = (text) => ({ name: text, call: (parameters, stop) => get("search/text", { text, ...parameters }, stop), preview: () => h("p", { class: "text" }, text) });
  const ask = () => {
    const texts = input.value.split("\n").map((line) => line.trim()).filter(Boolean);
    remember({ text: texts.join("\n") || null });
    if (texts.length) search(texts.map(query));
  };
  input.value = given ?? "";
  const form = h("form", { class: "ask", onsubmit: (event) => {
    event.preventDefault();
    ask();
  } }, h("label", { class: "field" }, "Text (several: one per line)", input), h("button", { class: "main" }, "Search"));
  return Object.assign(form, { ask });
}

async function gallery(signal) {
  const load = (offset) => get("items", { offset }, signal);
  const first = await load(0);
  return h("section", {}, h("h2", {}, "All items"),
    first.total ? growing(first.items, first.total, "Items in the gallery", load) : emptyStore());
}
