// The page: shows the view that the address names.

import { get } from "./api.js";
import { classPage, classesPage } from "./classes.js";
import { count, errorBox, h } from "./dom.js";
import { itemPage } from "./item.js";
import { mapPage } from "./map.js";
import { searchPage } from "./search.js";

const VIEWS = { "": searchPage, item: itemPage, map: mapPage, classes: classesPage, class: classPage };

let about = null;
let leave = new AbortController();
let opened = false;

async function show() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const main = document.getElementById("view");
  main.setAttribute("aria-busy", "true");
  // Most views appear at once; only slow ones show that they are loading.
  const waiting = setTimeout(() => main.replaceChildren(h("p", { class: "loading" }, "Loading …")), 250);
  let name, argument, content;
  try {
    [name, argument] = parse(location.hash);
    about ??= await aboutRun();
    content = await (Object.hasOwn(VIEWS, name) ? VIEWS[name] : unknown)(argument, { about, signal });
  } catch (error) {
    if (signal.aborted) return;
    content = h("div", {}, h("h1", {}, "Something went wrong"), errorBox(error), h("p", {}, h("a", { href: "#/" }, "Back to search")));
  } finally {
    clearTimeout(waiting);
  }
  if (signal.aborted) return;
  main.replaceChildren(content);
  main.removeAttribute("aria-busy");
  mark(name);
  document.title = `${main.querySelector("h1").textContent} · softtriple gallery`;
  scrollTo(0, 0);
  if (opened) main.focus({ preventScroll: true }); // not on the first load
  opened = true;
}

function parse(hash) {
  if (!hash.startsWith("#/")) return ["", ""];
  const [name, ...rest] = hash.slice(2).split("/");
  return [name, decodeURIComponent(rest.join("/"))];
}

function mark(name) {
  const section = { item: "", class: "classes" }[name] ?? name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${section}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

async function aboutRun() {
  const answer = await get("about");
  document.getElementById("about").textContent = `${count(answer.items, "item")} · ${count(answer.classes, "class", "classes")}`;
  return answer;
}

function unknown() {
  throw new Error("no such page");
}

addEventListener("hashchange", () => {
  if (location.hash !== "#view") show(); // the skip link is not a view
});
show();
