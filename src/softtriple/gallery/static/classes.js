// The table of classes, and the page of one class with its centres.

import { get } from "./api.js";
import { announce, breakable, classLink, count, emptyStore, h, percent, remember } from "./dom.js";
import { growing, tiles } from "./tiles.js";

const ROWS = 200;
const POLL = 3000; // milliseconds

// Columns that the table can be sorted by: heading, key, class of the cells.
const COLUMNS = {
  name: ["Class", (one) => one.class_name],
  recall: ["Recall@1", (one) => one.recall ?? 2],
  confused: ["Most often taken for", (one) => -(one.confused[0]?.items ?? 0) / (one.measured || 1)],
  items: ["Items", (one) => -one.items, "number"],
  centers: ["Centres", (one) => -(one.distinct_centers ?? -1), "number"],
};

export async function classesPage(_, { signal, parameters }) {
  let answer = await get("classes", {}, signal);
  if (!answer.classes.length) return h("div", {}, h("h1", {}, "Classes"), emptyStore());
  const withCenters = answer.classes.some((one) => one.distinct_centers !== null);
  const columns = Object.entries(COLUMNS).filter(([name]) => withCenters || name !== "centers");
  let [by, down] = (parameters.get("sort") ?? "recall").split(" ");
  if (!(by in COLUMNS)) [by, down] = ["recall"];
  const [lead, body] = [h("p", { class: "lead" }), h("tbody")];
  let shown = ROWS;
  const more = h("button", { type: "button", class: "more", onclick: () => fill(Infinity) }, "Show all");
  const none = h("p", { class: "empty", hidden: true }, "No class matches the filter.");
  const filter = h("input", { type: "search", oninput: () => fill(ROWS), autocomplete: "off", value: parameters.get("filter") });
  const heads = columns.map(([name, [title, , style]]) => h("th", { scope: "col", class: style },
    h("button", { type: "button", class: "quiet sort", "data-name": name, onclick: () => {
      [by, down] = [name, by === name && !down ? "down" : undefined];
      fill(ROWS);
    } }, title)));
  const fill = (most) => {
    shown = most;
    const wanted = filter.value.trim().toLowerCase();
    const matching = answer.classes.filter((one) => one.class_name.toLowerCase().includes(wanted));
    const key = COLUMNS[by][1];
    const compare = (a, b) => (typeof key(a) === "string" ? key(a).localeCompare(key(b), "en", { numeric: true }) : key(a) - key(b));
    matching.sort((a, b) => (down ? -compare(a, b) : compare(a, b)));
    body.replaceChildren(...matching.slice(0, most).map((one) => row(one, withCenters)));
    heads.forEach((head) => {
      const chosen = head.firstChild.dataset.name === by;
      // Numbers that are better or larger first count as descending.
      const descending = Boolean(down) === (by === "name" || by === "recall");
      head.setAttribute("aria-sort", chosen ? (descending ? "descending" : "ascending") : "none");
    });
    none.hidden = matching.length > 0;
    more.hidden = matching.length <= most;
    remember({ sort: by === "recall" && !down ? null : [by, down].filter(Boolean).join(" "), filter: filter.value.trim() || null });
    announce(wanted ? count(matching.length, "class", "classes") : "");
  };
  const measuring = () => answer.measured < answer.items;
  const show = () => {
    lead.replaceChildren(...summary(answer));
    // A row that has the focus does not go away under the hand.
    if (!body.contains(document.activeElement)) fill(shown);
  };
  show();
  const timer = measuring() && setInterval(async () => {
    answer = await get("classes", {}, signal).catch(() => answer);
    if (signal.aborted || !measuring()) clearInterval(timer);
    if (!signal.aborted) show();
  }, POLL);
  signal.addEventListener("abort", () => clearInterval(timer));
  return h("div", {},
    h("h1", {}, "Classes"),
    lead,
    h("label", { class: "field" }, "Filter by name", filter),
    h("table", { class: "classes" }, h("thead", {}, h("tr", {}, heads)), body),
    none, more);
}

function summary({ classes, recall, items, measured, sampled }) {
  const sample = sampled === null ? "" : ` The store is large: this is a sample of ${count(classes.length, "class", "classes")} with ${count(sampled, "item")}; recall in the whole store is usually lower.`;
  if (measured < items) {
    const bar = h("progress", { max: items, value: measured, "aria-label": "Items measured" });
    const sofar = recall === null ? "" : ` Recall@1 so far: ${percent(recall)}.`;
    return [`Looking for the nearest neighbour of every item: ${measured.toLocaleString("en")} of ${items.toLocaleString("en")}.${sofar} The table fills in meanwhile.${sample} `, bar];
  }
  if (recall === null) return ["No class has two items, so recall cannot be measured."];
  return [`Recall@1: the nearest other item has the same class for ${percent(recall)} of all items${parts(classes)}.${sample}`];
}

// Recall of trained and of unseen classes, if there are both.
function parts(classes) {
  const [trained, unseen] = [true, false].map((kind) => meanRecall(classes.filter((one) => one.trained === kind)));
  return trained === null || unseen === null ? "" : ` (trained classes ${percent(trained)}, unseen classes ${percent(unseen)})`;
}

function meanRecall(classes) {
  const rated = classes.filter((one) => one.recall !== null);
  const items = rated.reduce((sum, one) => sum + one.measured, 0);
  return items ? rated.reduce((sum, one) => sum + one.recall * one.measured, 0) / items : null;
}

function row(one, withCenters) {
  const [worst] = one.confused;
  return h("tr", {},
    h("th", { scope: "row" }, h("a", { href: classLink(one.class_name) }, breakable(one.class_name)),
      withCenters && !one.trained ? h("small", { title: "The run was not trained on this class." }, " unseen") : null),
    h("td", {}, share(one)),
    h("td", { class: "taken" }, worst ? [h("a", { href: classLink(worst.class_name) }, breakable(worst.class_name)), ` ${worst.items} of ${one.measured}`] : "–"),
    h("td", { class: "number", "data-name": "Items" }, one.items),
    withCenters ? h("td", { class: "number", "data-name": "Centres" }, one.distinct_centers ?? "–") : null);
}

function share({ recall, items }) {
  if (recall === null) return h("span", { class: "share" }, items > 1 ? "–" : "single item");
  const filled = h("span");
  filled.style.width = `${100 * recall}%`;
  return h("span", { class: "share" }, h("span", { class: "track", "aria-hidden": "true" }, filled), percent(recall));
}

export async function classPage(name, { signal }) {
  const page = await get("class", { class: name }, signal);
  const { summary } = page;
  const filled = page.centers.filter((one) => one.count);
  const unmeasured = summary.recall === null && summary.items > 1; // not in the sample
  const load = (center) => (offset) => get("items", { class: name, center, offset }, signal);
  return h("div", {},
    h("h1", {}, breakable(summary.class_name)),
    h("dl", { class: "facts" },
      fact("Items", summary.items.toLocaleString("en")),
      fact("Recall@1", summary.recall === null ? (unmeasured ? "not measured" : "single item") : percent(summary.recall)),
      fact("Centres", page.centers_per_class === null
        ? (summary.trained ? "none (the loss has no centres)" : "none (the run was not trained on this class)")
        : `${summary.distinct_centers} distinct of ${page.centers_per_class}`),
      fact("Taken for", summary.confused.length
        ? summary.confused.map((other) => h("span", {}, h("a", { href: classLink(other.class_name) }, breakable(other.class_name)), ` ${other.items}`))
        : unmeasured ? "not measured" : "no other class"),
      fact("See also", h("a", { href: `#/map?${new URLSearchParams({ show: JSON.stringify([name]) })}` }, "this class on the map"))),
    page.mistakes.length ? mistakes(page.mistakes, summary) : null,
    unmeasured ? h("p", {}, "This store is large, so only a sample of its classes is measured. This class is not in the sample.") : null,
    filled.map((one, place) => center(one, place, load(place))),
    filled.length && filled.length < page.centers.length
      ? h("p", { class: "rest" }, `${count(page.centers.length - filled.length, "more centre has", "more centres have")} no items in the store.`) : null,
    page.items.length ? h("section", {}, h("h2", {}, "Items"), growing(page.items, summary.items, "Items of the class", load(), { classes: false })) : null);
}

function fact(name, ...content) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, content));
}

// Errors first, each beside the items it is taken for one of.
function mistakes(list, summary) {
  const all = summary.recall === null ? list.length : Math.round((1 - summary.recall) * summary.items);
  return h("section", {},
    h("h2", {}, "Errors", h("small", {}, ` ${list.length < all ? `${list.length} of ${all}` : count(all, "item")}, closest to the wrong class first`)),
    h("ol", { class: "mistakes", "aria-label": "Errors" }, list.map(({ item, nearest }) => h("li", {},
      tiles([{ ...item, taken_for: null }], "Item", { classes: false }),
      h("div", {}, h("p", {}, "taken for ", h("a", { href: classLink(item.taken_for) }, breakable(item.taken_for))),
        tiles(nearest, `Nearest items of ${item.taken_for}`, { classes: false }))))));
}

function center(one, place, load) {
  const merged = one.merged > 1 ? `, merged from ${one.merged} trained centres` : "";
  return h("section", {},
    h("h2", {}, `Centre ${place + 1}`, h("small", {}, ` ${count(one.count, "item")}${merged}`)),
    growing(one.items, one.count, `Items nearest to centre ${place + 1}`, load, { classes: false }));
}
