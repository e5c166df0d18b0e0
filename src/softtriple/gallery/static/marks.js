// Marks of classes on the map: six colours that are distinguishable with colour blindness, times five shapes.

import { breakable, h } from "./dom.js";

// Okabe and Ito's palette, without the colours that vanish on white or black.
export const COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
const SHAPES = [
  "M1 0A1 1 0 1 1 -1 0A1 1 0 1 1 1 0Z", // circle
  "M-.9 -.9H.9V.9H-.9Z", // square
  "M0 -1.2L1.1 .8H-1.1Z", // triangle
  "M0 -1.3L1.3 0L0 1.3L-1.3 0Z", // diamond
  "M-.4 -1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2V-.4H-.4Z", // plus
];
const PATHS = SHAPES.map((shape) => new Path2D(shape));

export const NAMED = COLORS.length * SHAPES.length;

const kind = (label) => Math.floor(label / COLORS.length) % SHAPES.length;

export function shapeOf(label) {
  return PATHS[kind(label)];
}

// Names and marks of classes; a click highlights one class, another click resets.
export function legend(names, choose) {
  const buttons = names.map((name, label) => h("button", { type: "button", class: "quiet", "aria-pressed": "false", onclick: () => press(label) }, mark(label), h("span", {}, breakable(name))));
  const press = (label) => {
    const on = buttons[label].getAttribute("aria-pressed") === "false";
    buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(on && other === label)));
    choose(on ? label : -1);
  };
  return h("ul", { class: "legend", "aria-label": "Classes" }, buttons.map((button) => h("li", {}, button)));
}

function mark(label) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "-1.5 -1.5 3 3");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", SHAPES[kind(label)]);
  path.setAttribute("fill", COLORS[label % COLORS.length]);
  svg.append(path);
  return svg;
}
