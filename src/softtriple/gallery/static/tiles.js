// Items as a grid of pictures or, if they have none, as a list; each a link to its page. Arrow keys move the focus.

import { thumbnail } from "./api.js";
import { cosine, errorBox, h, itemLink, nameOf } from "./dom.js";
import { canSelect, checkbox } from "./select.js";

const SCORE = "Scores are cosine similarities of the embeddings: 1 for the same direction, about 0 for unrelated items, never above 1.";
const PROBABILITY = " The percentage is the probability of the same class, assuming that half of all queries are of classes that are not in the store.";

// What the numbers below hits mean.
export function numbers(hits) {
  return `${SCORE}${hits.some((hit) => typeof hit.probability === "number") ? PROBABILITY : ""}`;
}

// A probability in whole per cent.
export function likely(probability) {
  const share = Math.round(100 * probability);
  return `${share > 99 ? ">99" : share < 1 ? "<1" : share}\u00a0%`;
}

// `entries` are items or hits {item, score, same_class}; `classes: false` hides the class names. Scores have `digits`.
export function tiles(entries, label, { classes = true, digits = 3 } = {}) {
  const texts = entries.every((entry) => !(entry.item ?? entry).has_picture); // or vectors, of which only the name can be shown
  const list = h("ul", { class: texts ? "texts" : "tiles", "aria-label": label, onkeydown: walk });
  list.append(...entries.map((entry) => tile(entry, classes, digits)));
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

function tile(entry, named, digits) {
  const item = entry.item ?? entry;
  const other = entry.same_class === false;
  const wrong = item.taken_for ? `taken for ${item.taken_for}` : null;
  const probability = typeof entry.probability === "number" ? ` · ${likely(entry.probability)}` : null;
  const caption = [
    named ? h("span", { class: "class cut", title: other ? `other class: ${item.class_name}` : item.class_name },
      other ? ["✕ ", h("span", { class: "spoken" }, "other class: ")] : null, item.class_name) : null,
    entry.score === undefined ? null : h("span", { class: "score", title: numbers([entry]) }, cosine(entry.score, digits), probability),
    wrong ? h("span", { class: "badge cut", title: wrong }, "✕ ", wrong) : null,
    item.note ? h("span", { class: "note cut", title: item.note }, item.note) : null,
    item.proposed ? h("span", { class: "note cut", title: `proposed: ${item.proposed}` }, "→ ", item.proposed) : null,
    item.tags?.length ? h("span", { class: "note cut", title: item.tags.join(", ") }, "# ", item.tags.join(", ")) : null,
  ];
  const stored = item.stored !== false; // an audit also names items that the store does not have
  return h("li", { class: wrong || other ? "wrong" : null }, canSelect() && stored ? checkbox(item, nameOf(item)) : null,
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
