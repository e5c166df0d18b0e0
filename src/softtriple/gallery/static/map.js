// The map page: items as points, their colours and legend, and a list of those that are selected. Its state is in the address.

import { get, thumbnail } from "./api.js";
import { Chart } from "./chart.js";
import { announce, count, emptyStore, errorBox, h, itemLink, nameOf, percent, remember } from "./dom.js";
import { DISTINCT, legend, markOf } from "./marks.js";
import { canSelect, selectAll } from "./select.js";
import { growing } from "./tiles.js";

const COLOURS = { class: "Class", prediction: "Prediction", correct: "Correctness", center: "Centre", suspect: "Suspect label" };
const PAGE = 48;
const RARE = 0.1; // below this share of coloured points, the grey ones step back
const POLL = 4000; // milliseconds
const HELP = "Drag to move, scroll or pinch to zoom.";
const TAPS = " Tap a point to see its item, and again to open it.";
const KEYS = " Shift and drag to select. Keys: arrows move, + and − zoom, 0 resets the view, Enter opens the item at the cross, Escape clears the selection.";

export async function mapPage(_, { about, signal, parameters, refresh }) {
  const asked = parameters.get("method") === "pca" ? "pca" : undefined; // UMAP is the default, as soon as it is ready
  const data = await get("map", { method: asked }, signal);
  if (!data.x.length) return h("div", {}, h("h1", {}, "Map"), emptyStore());
  const items = rowsOf(data, signal);
  const canvas = h("canvas", { tabindex: 0, role: "application", "aria-label": `Map of ${count(data.x.length, "item")}`, "aria-describedby": "map-help" });
  const card = h("a", { class: "card", hidden: true, tabindex: -1 });
  const list = h("section", { class: "selected", "aria-label": "Items in this area", hidden: true });
  const side = h("div", { class: "side" });
  let settled = null;
  const chart = new Chart(canvas, data, {
    point: (row, place) => point(row, place),
    open: async (row) => { location.hash = itemLink((await items.get(row)).id); },
    moved: ({ zoom, x, y }) => {
      clearTimeout(settled); // browsers limit how often the address may change
      settled = setTimeout(() => remember({ at: chart.view === chart.middle ? null : [zoom, x, y].map((number) => Number(number.toPrecision(5))).join(" ") }), 150);
    },
    selected: (corners) => select(corners),
  });
  const point = async (row, place) => {
    card.hidden = row < 0;
    if (row < 0) return;
    const name = data.class_names[data.labels[row]];
    card.removeAttribute("href");
    card.replaceChildren(h("span", { class: about.kind === "image" ? "frame" : "frame words" }), h("span", { class: "cut" }, name));
    card.style.left = `${Math.min(Math.max(place[0] + 14, 0), chart.width - 170)}px`;
    card.style.top = `${place[1] > chart.height - 200 ? Math.max(0, place[1] - 200) : place[1] + 14}px`;
    const item = await items.get(row, 60).catch(() => null);
    if (!item || chart.at !== row) return; // the pointer has moved on
    card.href = itemLink(item.id);
    card.firstChild.replaceChildren(thumbnail(item));
    const note = colouring.describe?.(row);
    card.append(...(note ? [h("small", {}, note)] : []));
    if (chart.crossed) announce(`${name}, ${nameOf(item)}`);
  };
  const select = (corners) => {
    remember({ area: corners && corners.map((corner) => corner.map((number) => Number(number.toPrecision(4))).join(" ")).join(",") });
    const rows = corners ? chart.grid.inside(corners).filter((row) => !chart.hidden(row)) : [];
    list.hidden = corners === null;
    list.replaceChildren();
    if (corners) showSelected(list, rows, data, items, () => chart.select(null));
    announce(corners ? `${count(rows.length, "item")} in this area` : "");
  };

  // Colours.
  let colouring = { names: [], values: [] };
  const offered = Object.keys(COLOURS).filter((name) => about.audit || name !== "suspect");
  let wanted = offered.includes(parameters.get("by")) ? parameters.get("by") : "class";
  let again = null; // the timer of a colouring that is not complete
  const chosen = new Set(); // categories of the colouring that are highlighted
  const order = () => [...chosen];
  // With a few highlighted, each gets a colour of its own.
  const numberOf = (category) => (chosen.size ? order().indexOf(category) : category);
  const colour = async (by, names) => {
    const columned = await columns[by]();
    if (by !== wanted) return; // another colouring was chosen meanwhile
    colouring = columned;
    clearTimeout(again);
    if (colouring.pending) again = setTimeout(() => {
      predicted = null;
      colour(by, order().map((category) => colouring.names[category])).catch(() => {});
    }, POLL);
    chosen.clear();
    for (const name of names) if (colouring.names.includes(name)) chosen.add(colouring.names.indexOf(name));
    apply();
    const sizes = new Uint32Array(colouring.names.length);
    for (const value of colouring.values) if (value >= 0) sizes[value] += 1;
    const toggle = (category) => {
      if (!chosen.delete(category)) chosen.add(category);
      apply();
      if (chart.area) chart.select(chart.area);
    };
    const used = sizes.filter((size) => size).length;
    // Above the legend, which may be long.
    side.replaceChildren(...(colouring.note ? [h("p", { class: "hint" }, colouring.note)] : []),
      ...(used > DISTINCT ? [h("p", { class: "hint" }, "Colours and shapes repeat. Entries you choose here get one of their own.")] : []),
      legend(colouring.names, sizes, numberOf, chosen, toggle));
  };
  const apply = () => {
    const hidden = (category) => chosen.size > 0 && !chosen.has(category);
    const none = colouring.names.length;
    const rare = colouring.values.filter((category) => category >= 0).length < RARE * colouring.values.length;
    chart.marks = [...colouring.names.map((_, category) => markOf(numberOf(category), hidden(category))), markOf(-1, rare || hidden(-1))];
    chart.kinds = chart.grid.inOrder(Uint32Array.from(colouring.values, (category) => (category < 0 ? none : category)));
    chart.hidden = (row) => hidden(colouring.values[row]);
    chart.point(-1);
    remember({ show: chosen.size ? JSON.stringify(order().map((category) => colouring.names[category])) : null });
    chart.draw();
  };
  const progress = ({ pending }) => (pending ? ` ${count(pending, "item is", "items are")} still to be measured.` : "");
  const column = (name) => get("map/column", { version: data.version, column: name }, signal);
  let predicted = null;
  const predictions = () => (predicted ??= column("prediction"));
  const takenFor = (answer) => (row) => {
    if (answer.values[row] < 0) return "not measured yet";
    return answer.values[row] === data.labels[row] ? "predicted correctly" : `taken for ${answer.names[answer.values[row]]}`;
  };
  const columns = {
    class: () => ({ names: data.class_names, values: data.labels }),
    prediction: async () => {
      const answer = await predictions();
      return { ...answer, describe: takenFor(answer), note: `The prediction is the class of the nearest other item.${progress(answer)}` };
    },
    correct: async () => {
      const answer = await predictions();
      const values = answer.values.map((value, row) => (value < 0 ? -1 : Number(value !== data.labels[row])));
      return { names: ["Correct", "Wrong"], values, pending: answer.pending, describe: takenFor(answer), note: `Correct: the nearest other item has the same class.${progress(answer)}` };
    },
    center: async () => {
      const answer = await column("center");
      return { ...answer, note: answer.names.length ? "The centre of its own class that an item is nearest to. Grey: the run was not trained on the class." : "No item has a centre: the run was not trained on these classes, or its loss has no centres." };
    },
    suspect: async () => {
      const { state } = await get("audit", {}, signal);
      if (state !== "ready") {
        const page = h("a", { href: "#/audit" }, "See the audit page");
        return { names: [], values: data.labels.map(() => -1), pending: state === "computing", note: [`The audit ${state === "computing" ? "is still running" : "failed"}. `, page, "."] };
      }
      const answer = await column("suspect");
      const describe = (row) => (answer.values[row] < 0 ? null : `probably ${answer.names[answer.values[row]]}`);
      return { ...answer, describe, note: answer.names.length ? "Suspect labels, by the class that the item probably should have. Grey: no doubt about the label." : "No label is suspect." };
    },
  };
  // The map stays usable if a colouring cannot be had.
  const recolour = async (names) => {
    side.setAttribute("aria-busy", "true");
    side.replaceChildren(h("p", { class: "hint" }, "Loading…"));
    await colour(wanted, names).catch((error) => { if (!signal.aborted) side.replaceChildren(errorBox(error)); });
    side.removeAttribute("aria-busy");
  };
  const by = h("select", { onchange: () => {
    wanted = by.value;
    remember({ by: by.value === "class" ? null : by.value });
    recolour([]);
  } }, offered.map((value) => h("option", { value }, COLOURS[value])));
  const method = h("select", { onchange: () => { remember({ method: method.value === "pca" ? "pca" : null, at: null, area: null }); refresh(); } },
    h("option", { value: "umap", disabled: data.umap !== "ready" }, "UMAP"), h("option", { value: "pca" }, "PCA"));
  method.value = data.method;

  by.value = wanted;
  await recolour(names(parameters.get("show")));
  signal.throwIfAborted(); // nothing may be started for a page that was left meanwhile
  const [zoom, x, y] = numbers(parameters.get("at"));
  if (y !== undefined) chart.look({ zoom, x, y });
  const area = (parameters.get("area") ?? "").split(",").map(numbers).filter((corner) => corner.length === 2);
  if (area.length > 2) chart.select(area);
  signal.addEventListener("abort", () => {
    clearTimeout(settled);
    clearTimeout(again);
    chart.stop();
  });
  requestAnimationFrame(() => chart.start());
  const status = h("p", { class: "lead" }, caption(data));
  if (data.umap === "computing" && asked === undefined) whenDone(data.version, signal, (umap) => {
    if (umap !== "ready") {
      status.textContent = caption({ ...data, umap });
      return;
    }
    // What someone is looking at does not move under the pointer.
    if (chart.view === chart.middle && !chart.area) refresh();
    else status.replaceChildren("The UMAP layout is ready. ", h("button", { type: "button", onclick: () => { remember({ at: null, area: null }); refresh(); } }, "Show it"));
  });
  return h("div", { class: "map wide" },
    h("h1", {}, "Map"),
    status,
    h("div", { class: "tools" },
      h("label", { class: "field" }, "Colour by", by),
      data.umap === "unavailable" ? null : h("label", { class: "field" }, "Layout", method),
      modes(chart, parameters.get("drag")),
      h("span", { class: "buttons" }, button("+", "Zoom in", () => chart.zoom(1.5)), button("−", "Zoom out", () => chart.zoom(1 / 1.5)), button("⤢", "Reset view", () => chart.reset())),
      h("button", { type: "button", onclick: () => chart.selectView() }, "Select all in view")),
    h("div", { class: "sheet" }, h("div", { class: "plane" }, canvas, card), side),
    h("p", { class: "hint", id: "map-help" }, HELP, h("span", { class: "taps" }, TAPS), h("span", { class: "keys" }, KEYS)),
    list);
}

function caption(data) {
  const number = `${count(data.x.length, "item")}${data.x.length < data.total ? ` of ${data.total.toLocaleString("en")}` : ""}`;
  if (data.method === "umap") return `${number}, laid out by UMAP: neighbours stay together, distances between groups mean little.`;
  const axes = `${number} on the first two principal components (${percent(data.explained)} of variance).`;
  return data.umap === "computing" ? `${axes} The UMAP layout is being computed and will replace it.` : axes;
}

// Polls until the layout is no longer being computed.
function whenDone(version, signal, then) {
  const timer = setInterval(async () => {
    const state = await get("map/state", {}, signal).catch(() => null);
    if (signal.aborted || (state && state.umap !== "computing")) clearInterval(timer);
    if (!signal.aborted && state && state.umap !== "computing" && state.version === version) then(state.umap);
  }, POLL);
  signal.addEventListener("abort", () => clearInterval(timer));
}

// Items by their row on the map; asked for once each, after a pause in which the pointer may move on.
function rowsOf(data, signal) {
  const known = new Map();
  let latest = 0;
  const load = async (rows) => {
    const missing = rows.filter((row) => !known.has(row));
    if (missing.length) {
      const answer = await get("map/items", { version: data.version, row: missing }, signal);
      missing.forEach((row, place) => known.set(row, answer.items[place]));
    }
    return rows.map((row) => known.get(row));
  };
  const get_ = async (row, pause = 0) => {
    const turn = (latest += 1);
    if (pause && !known.has(row)) await new Promise((resolve) => setTimeout(resolve, pause));
    if (pause && turn !== latest) throw new Error("the pointer has moved on");
    return (await load([row]))[0];
  };
  return { get: get_, load };
}

async function showSelected(list, rows, data, items, clear) {
  const heading = h("div", { class: "heading" }, h("h2", {}, rows.length ? `${count(rows.length, "item")} in this area` : "No items in this area"),
    canSelect() && rows.length ? h("button", { type: "button", onclick: async () => {
      for (let start = 0; start < rows.length; start += 200) selectAll(await items.load(rows.slice(start, start + 200)));
    } }, rows.length > 1 ? `Select all ${rows.length.toLocaleString("en")}` : "Select it") : null,
    h("button", { type: "button", class: "quiet", onclick: clear }, "Clear"));
  const sizes = new Map();
  for (const row of rows) sizes.set(data.labels[row], (sizes.get(data.labels[row]) ?? 0) + 1);
  const largest = [...sizes].sort((a, b) => b[1] - a[1]);
  const classes = largest.slice(0, 8).map(([label, size]) => h("li", { title: data.class_names[label] }, h("span", { class: "cut" }, data.class_names[label]), " ", h("small", {}, size.toLocaleString("en"))));
  const more = largest.length > 8 ? h("li", {}, h("small", {}, `and ${count(largest.length - 8, "more class", "more classes")}`)) : null;
  list.replaceChildren(heading, ...(rows.length ? [h("ul", { class: "chips", "aria-label": "Classes in this area" }, classes, more)] : []));
  const load = async (offset) => {
    const shown = rows.slice(offset, offset + PAGE);
    return { items: shown.length ? await items.load(shown) : [], next_offset: offset + PAGE < rows.length ? offset + PAGE : null };
  };
  const first = await load(0);
  if (list.firstChild === heading && rows.length) list.append(...growing(first.items, rows.length, "Items in this area", load));
}

function modes(chart, asked) {
  const choices = { pan: "Move", box: "Box", lasso: "Lasso" };
  if (asked in choices) chart.mode = asked;
  return h("fieldset", { class: "modes" }, h("legend", {}, "Drag to"), Object.entries(choices).map(([mode, name]) =>
    h("label", {}, h("input", { type: "radio", name: "mode", value: mode, checked: mode === chart.mode, onchange: () => {
      chart.mode = mode;
      remember({ drag: mode === "pan" ? null : mode });
    } }), h("span", {}, name))));
}

function button(text, label, onclick) {
  return h("button", { type: "button", "aria-label": label, title: label, onclick }, text);
}

function names(text) {
  try {
    const list = JSON.parse(text ?? "[]");
    return Array.isArray(list) ? list : [];
  } catch {
    return [];
  }
}

const numbers = (text) => (text ?? "").split(" ").filter(Boolean).map(Number).filter(Number.isFinite);
