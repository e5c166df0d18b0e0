// One item and its neighbours.

import { get, thumbnail } from "./api.js";
import { breakable, classLink, count, h, nameOf } from "./dom.js";
import { tiles } from "./tiles.js";

export async function itemPage(id, { signal }) {
  const answer = await get("search/item", { id, k: 24 }, signal);
  const { query, hits } = answer;
  const agree = hits.filter((hit) => hit.same_class).length;
  return h("div", {},
    h("h1", {}, breakable(nameOf(query))),
    h("div", { class: "answer" },
      h("figure", { class: "asked" }, thumbnail(query, { size: "large", alt: `${nameOf(query)}, class ${query.class_name}` }),
        h("figcaption", {}, "Class ", h("a", { href: classLink(query.class_name) }, breakable(query.class_name)))),
      h("section", {}, h("h2", {}, "Most similar"),
        hits.length
          ? [h("p", {}, `${agree} of ${count(hits.length, "neighbour")} have the same class; the others are outlined in red.`), tiles(hits, "Neighbours, best first")]
          : h("p", {}, "The store has no other items."))));
}
