// One item: its picture in full size, what is known of it, and its neighbours.

import { get, thumbnail } from "./api.js";
import { breakable, classLink, count, h, nameOf } from "./dom.js";
import { canSelect, checkbox } from "./select.js";
import { numbers, tiles } from "./tiles.js";

export async function itemPage(id, { signal }) {
  const { query, hits } = await get("search/item", { id, k: 24 }, signal);
  const details = await get("item", { id }, signal);
  const agree = hits.filter((hit) => hit.same_class).length;
  const picture = thumbnail(query, { size: "large", alt: `${nameOf(query)}, class ${query.class_name}` });
  return h("div", {},
    h("h1", {}, breakable(nameOf(query))),
    h("div", { class: "answer" },
      h("figure", { class: "asked" },
        query.has_picture ? h("button", { type: "button", class: "enlarge", title: "Show in full size", onclick: () => enlarge(query) }, picture) : picture,
        canSelect() ? h("label", { class: "select" }, checkbox(query, nameOf(query)), "Select this item") : null,
        h("figcaption", {}, facts(details))),
      h("section", {}, h("h2", {}, "Most similar"),
        hits.length
          ? [h("p", {}, `${agree} of ${count(hits.length, "neighbour")} have the same class; the others are marked in red.`), tiles(hits, "Neighbours, best first"), h("p", { class: "hint" }, numbers(hits))]
          : h("p", {}, "The store has no other items."))));
}

function facts({ item, path, width, height, bytes, content, center, centers }) {
  const rows = [
    ["Class", h("a", { href: classLink(item.class_name) }, breakable(item.class_name))],
    ["Taken for", item.taken_for ? h("a", { href: classLink(item.taken_for) }, breakable(item.taken_for)) : null],
    ["Proposed", item.proposed],
    ["Tags", item.tags.join(", ") || null],
    ["Centre", center === null ? null : `${center + 1} of ${centers}`],
    ["Image", width === null ? null : `${width} × ${height} pixels, ${Math.max(1, Math.round(bytes / 1000)).toLocaleString("en")} kB`],
    ["Path", path === null ? null : breakable(path)],
    ["Id", path === item.id ? null : breakable(item.id)],
    ["SHA-256", content && h("span", { class: "cut", title: content }, content)],
  ];
  return h("dl", { class: "properties" }, rows.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

// The picture as large as the window.
function enlarge(item) {
  const close = () => dialog.close();
  const dialog = h("dialog", { class: "large", "aria-label": nameOf(item), onclick: close },
    thumbnail(item, { size: "full", alt: nameOf(item) }), h("button", { type: "button", onclick: close }, "Close"));
  dialog.addEventListener("close", () => dialog.remove());
  document.getElementById("view").append(dialog);
  dialog.showModal();
}
