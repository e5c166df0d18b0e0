// Items as a grid of pictures or, if they are texts, as a list; each a link to its page. Arrow keys move the focus.

import { thumbnail } from "./api.js";
import { cosine, errorBox, h, itemLink, nameOf } from "./dom.js";
import { canSelect, checkbox } from "./select.js";

const SCORE = "cosine similarity of the embeddings: 1 for the same direction, about 0 for unrelated items, never above 1";
const PROBABILITY = "the probability of the same class, if half of all queries are of classes that are not in the store";

// What the numbers below hits mean.
export function numbers(hits) {
  return `Numbers: ${SCORE}${hits.some((hit) => typeof hit.probability === "number") ? `; after it, ${PROBABILITY}` : ""}.`;
}

// `entries` are items or hits {item, score, same_class}; `classes: false` hides the class names.
export function tiles(entries, label, { classes = true } = {}) {
  const texts = entries.some((entry) => (entry.item ?? entry).text !== null);
  const list = h("ul", { class: texts ? "texts" : "tiles", "aria-label": label, onkeydown: walk });
  list.append(...entries.map((entry) => tile(entry, classes)));
  return list;
}

// A grid with a button that loads the next page by `load(offset)` until all items are shown.
export function growing(items, all, label, load, options) {
  const list = tiles(items, label, options);
  const more = h("button", { type: "button", class: "more", onclick: () => extend().catch((error) => more.replaceWith(errorBox(error))) }, "Show more");
  const extend = async () => {
    more.disabled = true;
    const page = await load(list.children.length);
    const added = [...tiles(page.items, "", options).children];
    list.append(...added);
    added[0]?.querySelector("a").focus({ preventScroll: true });
    more.hidden = page.next_offset === null;
    more.disabled = false;
  };
  more.hidden = items.length >= all;
  return [list, more];
}

function tile(entry, named) {
  const item = entry.item ?? entry;
  const other = entry.same_class === false ? "other class" : null;
  const wrong = item.taken_for ? `taken for ${item.taken_for}` : other;
  const likely = typeof entry.probability === "number" ? ` · ${entry.probability > 0.995 ? ">99" : Math.round(100 * entry.probability)}\u00a0%` : null;
  const caption = [
    named ? h("span", { class: "class cut", title: item.class_name }, item.class_name) : null,
    entry.score === undefined ? null : h("span", { class: "score", title: numbers([entry]) }, cosine(entry.score), likely),
    wrong ? h("span", { class: "badge cut", title: wrong }, "✕ ", wrong) : null,
    item.note ? h("span", { class: "note cut", title: item.note }, item.note) : null,
    item.proposed ? h("span", { class: "note cut", title: `proposed: ${item.proposed}` }, "→ ", item.proposed) : null,
    item.tags?.length ? h("span", { class: "note cut", title: item.tags.join(", ") }, "# ", item.tags.join(", ")) : null,
  ];
  const stored = item.stored !== false; // an audit also names items that the store does not have
  return h("li", { class: wrong ? "wrong" : null }, canSelect() && stored ? checkbox(item, nameOf(item)) : null,
    h(stored ? "a" : "div", { href: stored && itemLink(item.id), title: nameOf(item) }, h("span", { class: "frame" }, thumbnail(item, { alt: named ? "" : nameOf(item) })),
      caption.some(Boolean) ? h("span", { class: "caption" }, caption) : null));
}

function walk(event) {
  const links = [...event.currentTarget.querySelectorAll("a")];
  const here = links.indexOf(document.activeElement);
  if (here < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
  const top = links[0].getBoundingClientRect().top;
  const columns = links.filter((link) => Math.abs(link.getBoundingClientRect().top - top) < 5).length;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -here, End: links.length - 1 - here };
  const target = links[here + steps[event.key]];
  if (!target) return;
  event.preventDefault();
  target.focus();
}
