// The page: shows the view that the address names.

import { get } from "./api.js";
import { auditPage } from "./audit.js";
import { classPage, classesPage } from "./classes.js";
import { comparePage } from "./compare.js";
import { count, errorBox, h } from "./dom.js";
import { itemPage } from "./item.js";
import { mapPage } from "./map.js";
import { searchPage } from "./search.js";
import { startSelecting } from "./select.js";

const VIEWS = { "": searchPage, item: itemPage, map: mapPage, classes: classesPage, class: classPage, compare: comparePage, audit: auditPage };

const WATCH = 5000; // milliseconds

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
  const waiting = setTimeout(() => main.replaceChildren(h("p", { class: "loading" }, "Loading…")), 250);
  let name, argument, parameters, content;
  try {
    [name, argument, parameters] = parse(location.hash);
    about ??= await firstAbout();
    content = await (Object.hasOwn(VIEWS, name) ? VIEWS[name] : unknown)(argument, { about, signal, parameters, refresh: show });
  } catch (error) {
    if (signal.aborted) return;
    const [title, next] = error.status === 404
      ? ["Not found", h("p", {}, h("a", { href: "#/" }, "Back to search"))]
      : ["Something went wrong", h("button", { type: "button", onclick: show }, "Try again")];
    content = h("div", {}, h("h1", {}, title), errorBox(error), next);
  } finally {
    clearTimeout(waiting);
  }
  if (signal.aborted) return;
  main.replaceChildren(content);
  document.getElementById("changed").hidden = true;
  main.removeAttribute("aria-busy");
  mark(name);
  document.title = `${main.querySelector("h1").textContent} · softtriple gallery`;
  scrollTo(0, 0);
  if (opened) main.focus({ preventScroll: true }); // not on the first load
  opened = true;
}

function parse(hash) {
  const [path, query] = hash.startsWith("#/") ? hash.slice(2).split("?") : [""];
  const [name, ...rest] = path.split("/");
  return [name, decodeURIComponent(rest.join("/")), new URLSearchParams(query)];
}

function mark(name) {
  const section = { item: "", class: "classes" }[name] ?? name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${section}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

async function firstAbout() {
  const answer = await aboutRun();
  document.querySelector('nav a[href="#/audit"]').hidden = !answer.audit;
  document.querySelector('nav a[href="#/compare"]').hidden = !answer.compared.length;
  if (answer.edit) await startSelecting(show);
  return answer;
}

async function aboutRun() {
  const answer = await get("about");
  document.getElementById("about").textContent = `${count(answer.items, "item")} · ${count(answer.classes, "class", "classes")}`;
  return answer;
}

// When the store has changed, the numbers above follow at once; the view, which someone may be reading, on request.
async function watch() {
  if (document.hidden || about === null) return;
  const health = await fetch("/health").then((response) => response.json()).catch(() => null);
  if (health?.status !== "ok" || (health.items === about.items && health.version === about.version)) return;
  const before = about.items;
  about = await aboutRun();
  const change = about.items - before;
  const how = change ? `: ${count(Math.abs(change), "item")} ${change < 0 ? "fewer" : "more"}` : "";
  const notice = document.getElementById("changed");
  notice.hidden = false;
  notice.replaceChildren(`The store has changed${how}. `,
    h("button", { type: "button", onclick: () => show() }, "Update the page"));
}

function unknown() {
  throw Object.assign(new Error("no such page"), { status: 404 });
}

addEventListener("hashchange", () => {
  if (location.hash !== "#view") show(); // the skip link is not a view
});
setInterval(() => watch().catch(() => {}), WATCH);
show();
