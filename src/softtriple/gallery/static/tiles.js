// A grid of items, each a link to its page. Arrow keys move the focus.

import { thumbnail } from "./api.js";
import { breakable, errorBox, h, itemLink, nameOf } from "./dom.js";

// `entries` are items or hits {item, score, same_class}; `classes: false` hides the class names.
export function tiles(entries, label, { classes = true } = {}) {
  const list = h("ul", { class: "tiles", "aria-label": label, onkeydown: walk });
  list.append(...entries.map((entry) => tile(entry, classes)));
  return list;
}

// A grid with a button that loads the next page by `load(offset)` until all items are shown.
export function growing(items, all, label, load, options) {
  const list = tiles(items, label, options);
  const more = h("button", { type: "button", onclick: () => extend().catch((error) => more.replaceWith(errorBox(error))) }, "Show more");
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
  const wrong = item.taken_for ? ["confused with ", breakable(item.taken_for)] : other;
  const caption = [
    named ? h("span", { class: "class" }, breakable(item.class_name)) : null,
    entry.score === undefined ? null : h("span", { class: "score", title: "cosine similarity" }, entry.score.toFixed(3)),
    wrong ? h("span", { class: "badge" }, "✕ ", wrong) : null,
  ];
  return h("li", { class: wrong ? "wrong" : null },
    h("a", { href: itemLink(item.id), title: nameOf(item) }, h("span", { class: "frame" }, thumbnail(item, { alt: named ? "" : nameOf(item) })),
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
