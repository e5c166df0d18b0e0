// Classes: which are found and which are taken for others; and one class with its centres.

import { get } from "./api.js";
import { announce, breakable, classLink, count, h, percent } from "./dom.js";
import { tiles } from "./tiles.js";

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
      : `The nearest other item is of the same class for ${percent(recall)} of all items (Recall@1).`,
      sampled === null ? "" : ` Measured on an even sample of ${count(sampled, "item")}.`),
    h("label", { class: "field" }, "Show classes named", filter),
    h("table", { class: "classes" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Class"), h("th", { scope: "col" }, "Recall@1"),
        h("th", { scope: "col" }, "Most often taken for"), h("th", { scope: "col", class: "number" }, "Items"),
        withCenters ? h("th", { scope: "col", class: "number" }, "Centres") : null)),
      body),
    more);
}

function row(one, withCenters) {
  const [worst] = one.confused;
  return h("tr", {},
    h("th", { scope: "row" }, h("a", { href: classLink(one.class_name) }, breakable(one.class_name))),
    h("td", {}, share(one.recall)),
    h("td", { class: "taken" }, worst ? [h("a", { href: classLink(worst.class_name) }, breakable(worst.class_name)), ` ${worst.items} of ${one.items}`] : "–"),
    h("td", { class: "number", "data-name": "Items" }, one.items),
    withCenters ? h("td", { class: "number", "data-name": "Centres" }, one.distinct_centers ?? "–") : null);
}

function share(recall) {
  if (recall === null) return h("span", { class: "share" }, "one item");
  const bar = h("meter", { min: 0, max: 1, value: recall, "aria-hidden": "true" });
  return h("span", { class: "share" }, bar, h("span", {}, percent(recall)));
}

export async function classPage(name, { signal }) {
  const page = await get("class", { class: name }, signal);
  const { summary } = page;
  return h("div", {},
    h("h1", {}, breakable(summary.class_name)),
    h("dl", { class: "facts" },
      fact("Items", summary.items.toLocaleString("en")),
      fact("Recall@1", summary.recall === null ? "one item only" : percent(summary.recall)),
      fact("Centres", page.centers_per_class === null
        ? (summary.trained ? "this loss has none" : "none: the run was not trained on this class")
        : `${summary.distinct_centers} distinct of ${page.centers_per_class}`),
      fact("Taken for", summary.confused.length
        ? summary.confused.map((other) => h("span", {}, h("a", { href: classLink(other.class_name) }, breakable(other.class_name)), ` ${other.items}`))
        : "no other class")),
    page.centers.length ? page.centers.map(center) : h("section", {}, h("h2", {}, "Items"), tiles(page.items, "Items of the class", { classes: false }), rest(page.items.length, summary.items)));
}

function fact(name, ...content) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, content));
}

function center(one, place) {
  const merged = one.merged > 1 ? `, ${one.merged} trained centres in one place` : "";
  return h("section", {},
    h("h2", {}, `Centre ${place + 1}`, h("small", {}, ` nearest to ${count(one.count, "item")}${merged}`)),
    one.count ? [tiles(one.items, `Items nearest to centre ${place + 1}`, { classes: false }), rest(one.items.length, one.count)] : h("p", {}, "No item of the store falls to it."));
}

function rest(shown, all) {
  return shown < all ? h("p", { class: "rest" }, `and ${count(all - shown, "more", "more")}`) : null;
}
