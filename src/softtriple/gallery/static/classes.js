// Classes: which are found and which are taken for others; and one class with its centres.

import { get } from "./api.js";
import { announce, breakable, classLink, count, h, percent } from "./dom.js";
import { growing } from "./tiles.js";

const ROWS = 200;

export async function classesPage(_, { signal }) {
  const { classes, recall, sampled } = await get("classes", {}, signal);
  const withCenters = classes.some((one) => one.distinct_centers !== null);
  const body = h("tbody");
  const more = h("button", { type: "button", onclick: () => fill(Infinity) }, "Show all");
  const filter = h("input", { type: "search", oninput: () => fill(ROWS), autocomplete: "off" });
  const fill = (most) => {
    const wanted = filter.value.trim().toLowerCase();
    const chosen = classes.filter((one) => one.class_name.toLowerCase().includes(wanted));
    body.replaceChildren(...chosen.slice(0, most).map((one) => row(one, withCenters)));
    more.hidden = chosen.length <= most;
    announce(wanted ? count(chosen.length, "class", "classes") : "");
  };
  fill(ROWS);
  return h("div", {},
    h("h1", {}, "Classes, worst first"),
    h("p", { class: "lead" }, recall === null
      ? "No class has two items, so that there is nothing to find."
      : `The nearest other item of the store is of the same class for ${percent(recall)} of all items (Recall@1)${parts(classes)}.`,
      sampled === null ? "" : ` Measured on a sample of ${count(classes.length, "class", "classes")} with ${count(sampled, "item")}: among all of the store it would be less.`),
    h("label", { class: "field" }, "Show classes named", filter),
    h("table", { class: "classes" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Class"), h("th", { scope: "col" }, "Recall@1"),
        h("th", { scope: "col" }, "Most often taken for"), h("th", { scope: "col", class: "number" }, "Items"),
        withCenters ? h("th", { scope: "col", class: "number" }, "Centres") : null)),
      body),
    more);
}

// How much of it is owed to classes that the run was trained on; its report speaks of the others.
function parts(classes) {
  const [trained, unseen] = [true, false].map((kind) => meanRecall(classes.filter((one) => one.trained === kind)));
  return trained === null || unseen === null ? "" : `: ${percent(trained)} in trained classes, ${percent(unseen)} in new ones`;
}

function meanRecall(classes) {
  const rated = classes.filter((one) => one.recall !== null);
  const items = rated.reduce((sum, one) => sum + one.items, 0);
  return items ? rated.reduce((sum, one) => sum + one.recall * one.items, 0) / items : null;
}

function row(one, withCenters) {
  const [worst] = one.confused;
  return h("tr", {},
    h("th", { scope: "row" }, h("a", { href: classLink(one.class_name) }, breakable(one.class_name))),
    h("td", {}, share(one.recall)),
    h("td", { class: "taken" }, worst ? [h("a", { href: classLink(worst.class_name) }, breakable(worst.class_name)), ` ${worst.items} of ${one.items}`] : "–"),
    h("td", { class: "number", "data-name": "Items" }, one.items),
    withCenters ? h("td", { class: "number", "data-name": "Centres" }, one.distinct_centers ?? "not trained") : null);
}

function share(recall) {
  if (recall === null) return h("span", { class: "share" }, "one item");
  const bar = h("meter", { min: 0, max: 1, value: recall, "aria-hidden": "true" });
  return h("span", { class: "share" }, bar, h("span", {}, percent(recall)));
}

export async function classPage(name, { signal }) {
  const page = await get("class", { class: name }, signal);
  const { summary } = page;
  const filled = page.centers.filter((one) => one.count);
  const left = summary.recall === null && summary.items > 1; // out of the sample
  const load = (center) => (offset) => get("items", { class: name, center, offset }, signal);
  return h("div", {},
    h("h1", {}, breakable(summary.class_name)),
    h("dl", { class: "facts" },
      fact("Items", summary.items.toLocaleString("en")),
      fact("Recall@1", summary.recall === null ? (left ? "not measured" : "one item only") : percent(summary.recall)),
      fact("Centres", page.centers_per_class === null
        ? (summary.trained ? "this loss has none" : "none: the run was not trained on this class")
        : `${summary.distinct_centers} distinct of ${page.centers_per_class}`),
      fact("Taken for", summary.confused.length
        ? summary.confused.map((other) => h("span", {}, h("a", { href: classLink(other.class_name) }, breakable(other.class_name)), ` ${other.items}`))
        : left ? "not measured" : "no other class")),
    left ? h("p", {}, "The store is so large that a sample of its classes is looked at, and this one is not among them.") : null,
    filled.map((one, place) => center(one, place, load(place))),
    filled.length && filled.length < page.centers.length
      ? h("p", { class: "rest" }, `${count(page.centers.length - filled.length, "more centre has", "more centres have")} no item of the store.`) : null,
    page.items.length ? h("section", {}, h("h2", {}, "Items"), growing(page.items, summary.items, "Items of the class", load(), { classes: false })) : null);
}

function fact(name, ...content) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, content));
}

function center(one, place, load) {
  const merged = one.merged > 1 ? `, ${one.merged} trained centres in one place` : "";
  return h("section", {},
    h("h2", {}, `Centre ${place + 1}`, h("small", {}, ` nearest to ${count(one.count, "item")}${merged}`)),
    growing(one.items, one.count, `Items nearest to centre ${place + 1}`, load, { classes: false }));
}
