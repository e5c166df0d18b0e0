// Marks on the map: six colours that are distinguishable with colour blindness, times five shapes; and their legend.

import { count, h } from "./dom.js";

// Okabe and Ito's palette, without the colours that vanish on white or black.
const COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
const SHAPES = [
  "M1 0A1 1 0 1 1 -1 0A1 1 0 1 1 1 0Z", // circle
  "M-.9 -.9H.9V.9H-.9Z", // square
  "M0 -1.2L1.1 .8H-1.1Z", // triangle
  "M0 -1.3L1.3 0L0 1.3L-1.3 0Z", // diamond
  "M-.4 -1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2V-.4H-.4Z", // plus
];
const REACH = 1.3; // of the largest shape
const ROWS = 200; // of a legend

export const DISTINCT = COLORS.length * SHAPES.length;

const shapeOf = (number) => Math.floor(number / COLORS.length) % SHAPES.length;
const colorOf = (number) => COLORS[number % COLORS.length];

const GREY = [128, 134, 142];

const NONE = { shape: 0, color: GREY, alpha: 0.4, faint: true };
const FAINT = { ...NONE, alpha: 0.2 };
const MARKS = [...Array(DISTINCT).keys()].map((number) => ({
  shape: shapeOf(number), color: [1, 3, 5].map((place) => parseInt(colorOf(number).slice(place, place + 2), 16)), alpha: 0.85, faint: false,
}));

// How category `number` is painted: grey if there is none (-1), and hardly visible if it is `hidden`.
export function markOf(number, hidden) {
  if (hidden) return FAINT;
  return number < 0 ? NONE : MARKS[number % DISTINCT];
}

const masks = new Map(); // by radius, of which there are few

// For each shape the pixels that it covers, and how much of them (of 256).
export function masksOf(radius) {
  if (!masks.has(radius)) masks.set(radius, drawMasks(radius));
  return masks.get(radius);
}

function drawMasks(radius) {
  const side = 2 * Math.ceil(REACH * radius) + 1;
  const context = h("canvas", { width: side, height: side }).getContext("2d", { willReadFrequently: true });
  return SHAPES.map((shape) => {
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, side, side);
    context.setTransform(radius, 0, 0, radius, side / 2, side / 2);
    context.fill(new Path2D(shape));
    const { data } = context.getImageData(0, 0, side, side);
    const covered = [...Array(side * side).keys()].filter((pixel) => data[4 * pixel + 3] > 8);
    const list = (value) => Int32Array.from(covered, value);
    return { side, columns: list((pixel) => pixel % side), rows: list((pixel) => Math.floor(pixel / side)), covers: list((pixel) => (data[4 * pixel + 3] * 256) / 255) };
  });
}

// Names, marks and sizes of the categories. A click highlights one or takes it back; `numberOf` gives its mark.
export function legend(names, sizes, numberOf, chosen, toggle) {
  const alphabetical = [...names.keys()].filter((category) => sizes[category]).sort((a, b) => names[a].localeCompare(names[b], "en", { numeric: true }));
  const list = h("ul", { "aria-label": "Legend" });
  const rest = h("p", { class: "hint" });
  const filter = h("input", { type: "search", autocomplete: "off", placeholder: "Filter", "aria-label": "Filter the legend", oninput: () => fill() });
  const fill = () => {
    const wanted = filter.value.trim().toLowerCase();
    const matching = alphabetical.filter((category) => names[category].toLowerCase().includes(wanted));
    // Highlighted ones first, so that they can be taken back.
    const shown = [...matching.filter((category) => chosen.has(category)), ...matching.filter((category) => !chosen.has(category))];
    list.replaceChildren(...shown.slice(0, ROWS).map(entry));
    rest.textContent = shown.length > ROWS ? `and ${count(shown.length - ROWS, "more", "more")}: filter by name` : "";
  };
  const entry = (category) => h("li", {}, h("button", {
    type: "button", class: "quiet", "aria-pressed": String(chosen.has(category)), title: names[category],
    onclick: () => {
      toggle(category);
      fill();
      list.querySelector(`[title="${CSS.escape(names[category])}"]`)?.focus();
    },
  }, drawing(numberOf(category)), h("span", { class: "cut" }, names[category]), h("small", {}, sizes[category].toLocaleString("en"))));
  fill();
  return h("div", { class: "legend" }, alphabetical.length > 12 ? filter : null, list, rest);
}

function drawing(number) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "-1.5 -1.5 3 3");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", SHAPES[Math.max(0, shapeOf(number))]);
  path.setAttribute("fill", number < 0 ? "currentColor" : colorOf(number));
  svg.append(path);
  return svg;
}
