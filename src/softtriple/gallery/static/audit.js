// The audit: what is probably wrong with the data, beside what it should look like. Decisions are kept in this browser
// and exported as tables that `softtriple train` reads.

import { get } from "./api.js";
import { csv, save } from "./csv.js";
import { announce, breakable, classLink, count, errorBox, h, nameOf, percent, remember } from "./dom.js";
import { tiles } from "./tiles.js";

const POLL = 2000; // milliseconds
const KINDS = {
  labels: ["Suspect labels", "Each item was judged by a metric that had not seen its label. Beside it are the most similar items of the class it has and of the class it probably should have."],
  leaks: ["Leaks", "Copies across train and test. They usually make the metrics look better than they are."],
  copies: ["Duplicates", "Copies of each other; groups with different labels come first."],
  odd: ["Odd items", "Unreadable, blank, tiny or elongated items, and items far from the centres of every class."],
  classes: ["Classes", "Classes that are hard to tell apart, that fall into separate groups, or that have few items. Of a pair, the items closest to the other class are shown."],
};
const COPIES = { exact: "Same content", picture: "Nearly the same picture", embedding: "Nearly equal embeddings" };
const ISSUES = {
  merge: ["look like one class: merge them?", (value) => `${percent(value)} of their items are taken for the other class`],
  confusable: ["are often confused", (value) => `${percent(value)} of their items are taken for the other class`],
  split: ["falls into two groups: split it?", (value) => `two groups explain ${percent(value)} of the variance along the line between them`],
  few: ["has too few items", (value) => count(value, "item")],
};

export async function auditPage(_, { about, signal, parameters, refresh }) {
  const audit = await get("audit", {}, signal);
  if (audit.state !== "ready") return waiting(audit, signal, refresh);
  const decisions = new Decisions(`softtriple-audit ${about.fingerprint} ${audit.name}`);
  const [list, chosen] = [h("div"), h("section", { class: "decisions", "aria-label": "Your decisions" })];
  decisions.changed = () => summary(chosen, decisions, () => open(shown));
  const kinds = Object.keys(KINDS).filter((kind) => audit.counts[kind]);
  const buttons = kinds.map((kind) => h("button", { type: "button", "data-name": kind, onclick: () => open(kind) }, `${KINDS[kind][0]}: ${audit.counts[kind].toLocaleString("en")}`));
  let shown = kinds.includes(parameters.get("show")) ? parameters.get("show") : kinds[0];
  const open = async (kind) => {
    shown = kind;
    remember({ show: kind === kinds[0] ? null : kind });
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.name === kind));
    const load = (offset) => get("audit/findings", { kind, offset }, signal);
    const page = await load(0).catch((error) => error);
    if (signal.aborted || shown !== kind) return;
    if (page instanceof Error) list.replaceChildren(errorBox(page));
    else list.replaceChildren(h("p", { class: "hint" }, KINDS[kind][1], kind === "leaks" ? effect(audit) : ""), ...growing(page, load, decisions, kind));
  };
  if (kinds.length) await open(shown);
  decisions.changed();
  return h("div", {},
    h("h1", {}, "Audit"),
    h("p", { class: "lead" }, `${count(audit.items, "item")} of ${audit.name}, compared by ${audit.features}.`, audit.notes.map((note) => ` ${note}`)),
    kinds.length ? h("div", { class: "buttons-row kinds", role: "group", "aria-label": "Findings" }, buttons) : h("p", { class: "empty" }, "Nothing found: no suspect labels, no duplicates, no odd items."),
    chosen, list);
}

function waiting(audit, signal, refresh) {
  const progress = h("p", { class: "hint", role: "status" }, audit.message);
  if (audit.state === "failed") {
    return h("div", {}, h("h1", {}, "Audit"), errorBox(new Error(`The audit failed: ${audit.message}`)),
      h("p", {}, "Make one with ", h("code", {}, "softtriple audit DATA_OR_RUN --out DIR"), " and show it with ", h("code", {}, "softtriple serve … --audit DIR"), "."));
  }
  const timer = setInterval(async () => {
    const now = await get("audit", {}, signal).catch(() => audit);
    progress.textContent = now.message;
    if (now.state === "computing" || signal.aborted) return;
    clearInterval(timer);
    refresh();
  }, POLL);
  signal.addEventListener("abort", () => clearInterval(timer));
  return h("div", {}, h("h1", {}, "Audit"), h("p", { class: "lead" }, "Looking for wrong labels, duplicates and odd items in the data of this run. The findings will appear here; you can leave this page meanwhile."),
    h("progress", { "aria-label": "Auditing" }), progress);
}

function effect({ leaked_items: items, recall_with_leak: before, recall_without_leak: after }) {
  const changed = before === null || after === null ? "" : ` Without them, Recall@1 is ${percent(after)} instead of ${percent(before)}.`;
  return ` ${count(items, "test item has a copy", "test items have copies")} in train.${changed}`;
}

// What someone has decided: items to relabel or to leave out, and findings to ignore.
class Decisions {
  constructor(key) {
    this.key = key;
    const { items = [], dismissed = [] } = JSON.parse(localStorage.getItem(key) ?? "{}");
    [this.items, this.dismissed] = [new Map(items), new Set(dismissed)];
  }

  // Relabel an item, leave it out (label: ""), or neither (label: null).
  decide({ item, split, row, path }, label) {
    if (label === null) this.items.delete(item.id);
    else this.items.set(item.id, { label, before: item.class_name, split, row, path });
    this.keep();
  }

  dismiss(finding, dismissed) {
    this.dismissed[dismissed ? "add" : "delete"](keyOf(finding));
    if (dismissed) for (const { item } of finding.items) this.items.delete(item.id);
    this.keep();
  }

  clear() {
    this.items.clear();
    this.dismissed.clear();
    this.keep();
  }

  keep() {
    localStorage.setItem(this.key, JSON.stringify({ items: [...this.items], dismissed: [...this.dismissed] }));
    this.changed();
  }

  has(finding) {
    return this.dismissed.has(keyOf(finding)) || finding.items.some(({ item }) => this.items.has(item.id));
  }
}

const keyOf = ({ kind, items, classes }) => JSON.stringify([kind, ...classes, ...items.map(({ item }) => item.id)]);

function summary(place, decisions, redraw) {
  const labels = [...decisions.items.values()].map(({ label }) => label);
  const out = labels.filter((label) => label === "").length;
  place.hidden = !labels.length && !decisions.dismissed.size;
  const text = `${count(labels.length - out, "item")} to relabel, ${out.toLocaleString("en")} to leave out, ${count(decisions.dismissed.size, "finding")} dismissed`;
  place.replaceChildren(h("strong", {}, text),
    h("button", { type: "button", disabled: !labels.length, title: "For softtriple train --labels: relabels and leaves out", onclick: () => save("labels.csv", labelTable(decisions)) }, "Labels as CSV"),
    h("button", { type: "button", disabled: !out, title: "For softtriple train --exclude: only leaves out", onclick: () => save("exclude.csv", exclusionTable(decisions)) }, "Exclusions as CSV"),
    h("button", { type: "button", class: "quiet", onclick: () => { decisions.clear(); redraw(); } }, "Start over"),
    h("small", {}, "Train with them: ", h("code", {}, "softtriple train DATA --labels labels.csv")));
  announce(text);
}

function labelTable({ items }) {
  return csv([["item", "label", "before"], ...[...items].map(([id, { label, before }]) => [id, label, before])]);
}

function exclusionTable({ items }) {
  const out = [...items.values()].filter(({ label }) => label === "");
  return csv([["path", "split", "row", "label"], ...out.map(({ path, split, row, before }) => [path ?? "", split, row, before])]);
}

function growing(first, load, decisions, kind) {
  const list = h("ol", { class: `findings ${kind}`, "aria-label": "Findings" });
  const more = h("button", { type: "button", class: "more", onclick: async () => {
    more.disabled = true;
    add(await load(list.children.length).catch((error) => { more.before(errorBox(error)); return { findings: [], next_offset: null }; }));
    more.disabled = false;
  } }, "Show more");
  const add = ({ findings, next_offset: next }) => {
    list.append(...findings.map((finding) => entry(finding, decisions)));
    more.hidden = next === null;
  };
  add(first);
  return [list, more];
}

function entry(finding, decisions) {
  const element = h("li");
  const redraw = () => {
    element.className = decisions.has(finding) ? "decided" : "";
    for (const toggle of element.querySelectorAll("[aria-pressed]")) toggle.setAttribute("aria-pressed", String(toggle.isOn()));
  };
  // A button that is pressed while `isOn()`, and switched by `set(on)`.
  const toggle = (text, isOn, set) => {
    const button = h("button", { type: "button", "aria-pressed": "false", onclick: () => { set(!isOn()); redraw(); } }, text);
    return Object.assign(button, { isOn });
  };
  const relabel = (text, found, label) => toggle(text, () => decisions.items.get(found.item.id)?.label === label, (on) => {
    decisions.dismiss(finding, false);
    decisions.decide(found, on ? label : null);
  });
  const dismiss = toggle("Dismiss", () => decisions.dismissed.has(keyOf(finding)), (on) => decisions.dismiss(finding, on));
  const draw = { label: suspect, copies, odd }[finding.kind] ?? classIssue;
  element.append(...draw(finding, { relabel, toggle, dismiss, decisions }));
  redraw();
  return element;
}

const actions = (...buttons) => h("div", { class: "buttons-row", role: "group", "aria-label": "Decision" }, buttons);
const link = (name) => h("a", { href: classLink(name) }, breakable(name));
const shownItem = ({ item, stored }, ...notes) => ({ ...item, stored, note: [...notes, ...(stored ? [] : ["not in the store"])].join(", ") });

function suspect({ items: [found], classes: [given, suggested], beside, probability }, { relabel, dismiss }) {
  return [
    tiles([shownItem(found)], nameOf(found.item), { classes: false }),
    h("div", {}, h("h2", {}, link(given), " → ", link(suggested), h("small", {}, ` probability of a wrong label ${probability > 0.999 ? "above 99.9\u00a0%" : percent(probability)}`)),
      sides(beside, [["Labelled ", given], ["Looks like ", suggested]]),
      actions(relabel(["Relabel as ", ...breakable(suggested)], found, suggested), relabel("Leave out", found, ""), dismiss))];
}

function copies({ items, count: all, note, conflict, score }, { relabel, toggle, dismiss, decisions }) {
  const list = tiles(items.map((found) => shownItem(found, found.split)), "Copies");
  [...list.children].forEach((tile, place) => tile.append(relabel("Leave out", items[place], "")));
  const proposed = items.filter((found) => found.leave_out);
  const isOn = () => items.every((found) => (decisions.items.get(found.item.id)?.label === "") === found.leave_out);
  const all_ = toggle(proposed.length === items.length ? "Leave out all" : `Leave out ${count(proposed.length, "copy", "copies")}`, isOn, (on) => {
    dismiss.isOn() && dismiss.click();
    for (const found of items) decisions.decide(found, on && found.leave_out ? "" : null);
  });
  return [h("div", { class: "whole" },
    h("h2", {}, COPIES[note], conflict ? ", different labels" : "", h("small", {}, ` ${all > items.length ? `${items.length} of ` : ""}${count(all, "item")}, similarity ${score.toFixed(3)}`)),
    list, actions(all_, dismiss))];
}

function odd({ items: [found], note, score }, { relabel, dismiss }) {
  return [
    tiles([shownItem(found)], nameOf(found.item), { classes: false }),
    h("div", {}, h("h2", {}, `${note[0].toUpperCase()}${note.slice(1)}`, score === null ? "" : h("small", {}, ` cosine ${score.toFixed(2)}`)),
      h("p", {}, link(found.item.class_name)), actions(relabel("Leave out", found, ""), dismiss))];
}

function classIssue({ kind, classes, beside, score }, { dismiss }) {
  const [title, detail] = ISSUES[kind];
  const heads = kind === "split" ? [["Group 1 of ", classes[0]], ["Group 2 of ", classes[0]]] : classes.map((name) => ["", name]);
  return [h("div", { class: "whole" },
    h("h2", {}, classes.map((name, place) => [place ? " and " : "", link(name)]), ` ${title}`, h("small", {}, ` ${detail(score)}`)),
    sides(beside, heads), actions(dismiss))];
}

// Items of two classes side by side.
function sides(groups, heads) {
  return h("div", { class: "sides" }, groups.map(({ items }, place) => h("div", {}, h("p", {}, heads[place][0], link(heads[place][1])),
    items.length ? tiles(items, `Items of ${heads[place][1]}`, { classes: false }) : h("p", {}, "no items in the store"))));
}
