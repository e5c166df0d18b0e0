// Two runs on the same items: their metrics, and the queries that only one of them gets right.

import { get, thumbnail } from "./api.js";
import { breakable, classLink, count, h, itemLink, nameOf, remember } from "./dom.js";
import { numbers, tiles } from "./tiles.js";

const POLL = 2000; // milliseconds

export async function comparePage(_, { signal, parameters, refresh }) {
  const answer = await get("compare", {}, signal);
  if (!answer.ready) return waiting(answer, signal, refresh);
  const [first, second] = answer.names;
  const lists = { first: answer.only_first, second: answer.only_second };
  const [both, onlyFirst, onlySecond, neither] = answer.counts;
  const bounded = answer.metrics.filter(({ low }) => low !== null).map(({ title }) => title);
  const list = h("div");
  const buttons = Object.entries({ first: [`Only ${first} right`, onlyFirst], second: [`Only ${second} right`, onlySecond] })
    .map(([name, [text, number]]) => h("button", { type: "button", "data-name": name, onclick: () => show(name) }, `${text}: ${number.toLocaleString("en")}`));
  const show = (name) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.name === name));
    remember({ only: name === "first" ? null : name });
    const total = name === "first" ? onlyFirst : onlySecond;
    list.replaceChildren(lists[name].length
      ? h("p", { class: "hint" }, `Most confident errors first${lists[name].length < total ? `, ${lists[name].length} of ${total.toLocaleString("en")}` : ""}. ${numbers([])}`)
      : h("p", { class: "empty" }, "There are none."),
    h("ol", { class: "compared", "aria-label": "Queries" }, lists[name].map((query) => pair(query, answer.names))));
  };
  show(parameters.get("only") === "second" ? "second" : "first");
  return h("div", {},
    h("h1", {}, "Compare"),
    h("p", { class: "lead" }, `${first} and ${second} on the ${count(answer.items, "item")} in both stores; each item is searched for among all others. Values are percentages. Differences are in percentage points, bold where the interval excludes zero${bounded.length < answer.metrics.length ? `; intervals are computed for ${bounded.join(" and ")}` : ""}.`),
    h("table", { class: "metrics" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Metric"), [first, second, "Difference", "95 % interval"].map((name) => h("th", { scope: "col", class: "number" }, name)))),
      h("tbody", {}, answer.metrics.map(metric))),
    h("p", {}, `The nearest item has the right class by both runs for ${count(both, "query", "queries")}, by neither for ${neither.toLocaleString("en")}.`),
    h("h2", {}, "Queries that one gets right and the other wrong"),
    h("div", { class: "buttons-row", role: "group", "aria-label": "Which run is right" }, buttons),
    list);
}

function waiting({ names: [first, second], items }, signal, refresh) {
  const timer = setInterval(async () => {
    const now = await get("compare", {}, signal).catch(() => ({ ready: true })); // the page shows the error
    if (signal.aborted || !now.ready) return;
    clearInterval(timer);
    refresh();
  }, POLL);
  signal.addEventListener("abort", () => clearInterval(timer));
  return h("div", {}, h("h1", {}, "Compare"),
    h("p", { class: "lead" }, `Comparing ${first} and ${second}: each of the ${count(items, "item")} is searched for among all others, by both runs. The result will appear here; you can leave this page meanwhile.`),
    h("progress", { "aria-label": "Comparing" }));
}

function metric({ title, first, second, low, high }) {
  const clear = low !== null && (low > 0 || high < 0);
  return h("tr", {}, h("th", { scope: "row" }, title), h("td", { class: "number" }, (100 * first).toFixed(2)), h("td", { class: "number" }, (100 * second).toFixed(2)),
    h("td", { class: "number" }, clear ? h("strong", {}, signed(second - first)) : signed(second - first)),
    h("td", { class: "number" }, low === null ? "–" : `${signed(low)} to ${signed(high)}`));
}

const signed = (share) => `${share < 0 ? "−" : "+"}${Math.abs(100 * share).toFixed(2)}`;

function pair({ item, first, second }, names) {
  return h("li", {},
    h("figure", {}, h("a", { href: itemLink(item.id) }, h("span", { class: "frame" }, thumbnail(item, { alt: nameOf(item) }))),
      h("figcaption", {}, h("a", { class: "cut", href: classLink(item.class_name), title: item.class_name }, breakable(item.class_name)))),
    [first, second].map((hits, place) => h("div", {}, h("h3", { class: "cut" }, names[place]), tiles(hits, `Neighbours by ${names[place]}`))));
}
