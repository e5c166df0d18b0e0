// A grid of items, each a link to its own page. Arrow keys walk through it.

import { picture } from "./api.js";
import { breakable, h, itemLink, nameOf } from "./dom.js";

// `entries` are items, or hits: {item, score, same_class}. Where all are of one class, its name need not stand everywhere.
export function tiles(entries, label, { classes = true } = {}) {
  const list = h("ul", { class: "tiles", "aria-label": label, onkeydown: walk });
  list.append(...entries.map((entry) => tile(entry, classes)));
  return list;
}

function tile(entry, named) {
  const item = entry.item ?? entry;
  const wrong = entry.same_class === false;
  const caption = named && h("span", { class: "caption" },
    h("span", { class: "class" }, breakable(item.class_name)),
    entry.score === undefined ? null : h("span", { class: "score", title: "cosine similarity" }, entry.score.toFixed(3)),
    wrong ? h("span", { class: "badge" }, "✕ other class") : null);
  return h("li", { class: wrong ? "wrong" : null },
    h("a", { href: itemLink(item.id), title: nameOf(item) }, h("span", { class: "frame" }, picture(item, { alt: named ? "" : nameOf(item) })), caption || null));
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
