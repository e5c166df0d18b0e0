// The map: items as points on a canvas, moved by wheel, pinch, drag and keys.

import { get, thumbnail } from "./api.js";
import { announce, breakable, count, h, itemLink, nameOf, percent } from "./dom.js";
import { COLORS, NAMED, legend, shapeOf } from "./marks.js";

const REACH = 14; // pixels around the pointer
const HELP = "Arrow keys pan, + and − zoom, 0 resets the view, Enter opens the item at the cross.";

export async function mapPage(_, { about, signal }) {
  const data = await get("map", {}, signal);
  const canvas = h("canvas", { tabindex: 0, role: "application", "aria-label": `Map of ${count(data.ids.length, "item")}. ${HELP}` });
  const card = h("a", { class: "card", hidden: true });
  const chart = new Chart(canvas, card, data, about.kind === "image");
  const select = h("select", { onchange: () => chart.highlight(Number(select.value)) },
    h("option", { value: -1 }, "All classes"), data.class_names.map((name, label) => h("option", { value: label }, name)));
  const choose = (label) => {
    select.value = label;
    chart.highlight(label);
  };
  signal.addEventListener("abort", () => chart.stop());
  requestAnimationFrame(() => chart.start());
  const few = data.class_names.length <= NAMED;
  return h("div", { class: "map" },
    h("h1", {}, "Embedding map"),
    h("p", { class: "lead" }, `${count(data.ids.length, "item")}${data.ids.length < data.total ? ` of ${data.total.toLocaleString("en")}` : ""} · first two principal components (${percent(data.explained)} of variance). `,
      few ? "" : "There are more classes than colours and shapes: select one to highlight it."),
    h("div", { class: "tools" }, h("label", { class: "field" }, "Highlight", select),
      h("span", { class: "buttons" }, button("+", "Zoom in", () => chart.zoom(1.5)), button("−", "Zoom out", () => chart.zoom(1 / 1.5)), button("⤢", "Reset view", () => chart.reset()))),
    h("div", { class: "plane" }, canvas, card),
    h("p", { class: "hint" }, HELP, " ", h("a", { href: "#/classes" }, "View as a table"), "."),
    few ? legend(data.class_names, choose) : null);
}

function button(text, label, onclick) {
  return h("button", { type: "button", "aria-label": label, title: label, onclick }, text);
}

class Chart {
  constructor(canvas, card, data, images) {
    Object.assign(this, { canvas, card, data, images, chosen: -1, at: -1, crossed: false, pointers: new Map(), moved: 0, frame: null, stale: true });
    this.context = canvas.getContext("2d");
    this.points = h("canvas"); // the points alone, so that ring and cross move without redrawing them
    const middle = (values) => (Math.min(...bounds(values)) + Math.max(...bounds(values))) / 2;
    this.middle = [middle(data.x), middle(data.y)];
    const span = (values) => bounds(values)[1] - bounds(values)[0];
    this.span = [span(data.x), span(data.y)].map((length) => Math.max(length, 1e-9));
    this.view = { zoom: 1, x: 0, y: 0 }; // the centre of the view, in pixels at zoom 1
    const on = (types, handler) => types.split(" ").forEach((type) => canvas.addEventListener(type, handler.bind(this), { passive: false }));
    on("wheel", this.onWheel);
    on("pointerdown", this.onDown);
    on("pointermove", this.onMove);
    on("pointerup pointercancel", this.onUp);
    on("pointerleave", () => this.pointers.size || this.point(-1));
    on("keydown", this.onKey);
    on("blur", () => this.cross(false));
  }

  start() {
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.canvas);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.repaint = () => this.draw();
    this.scheme.addEventListener("change", this.repaint);
  }

  stop() {
    this.observer?.disconnect();
    this.scheme?.removeEventListener("change", this.repaint);
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    [this.width, this.height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    for (const canvas of [this.canvas, this.points]) [canvas.width, canvas.height] = [this.width * ratio, this.height * ratio];
    this.scale = 0.92 * Math.min(this.width / this.span[0], this.height / this.span[1]);
    this.ratio = ratio;
    this.draw();
  }

  // Position of an item on the canvas.
  place(index) {
    const { scale, view: { zoom, x, y } } = this;
    return [
      this.width / 2 + zoom * (scale * (this.data.x[index] - this.middle[0]) - x),
      this.height / 2 + zoom * (-scale * (this.data.y[index] - this.middle[1]) - y),
    ];
  }

  // Paint once before the next frame, however often it is called.
  draw({ stale = true } = {}) {
    this.stale ||= stale;
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      if (this.width) this.paint(getComputedStyle(this.canvas));
    });
  }

  get size() {
    return Math.min(8, 3.2 * Math.sqrt(this.view.zoom)) * (this.data.ids.length > 3000 ? 0.8 : 1);
  }

  paintPoints(style) {
    const { ratio, data, size } = this;
    const c = this.points.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, this.width, this.height);
    const paint = (index, faint) => {
      const [x, y] = this.place(index);
      if (x < -9 || y < -9 || x > this.width + 9 || y > this.height + 9) return;
      const label = data.labels[index];
      c.setTransform(ratio * size, 0, 0, ratio * size, ratio * x, ratio * y);
      c.globalAlpha = faint ? 0.15 : 0.85;
      c.fillStyle = faint ? style.getPropertyValue("--soft") : COLORS[label % COLORS.length];
      c.fill(shapeOf(label));
    };
    for (const index of data.labels.keys()) if (this.chosen >= 0 && data.labels[index] !== this.chosen) paint(index, true);
    for (const index of data.labels.keys()) if (this.chosen < 0 || data.labels[index] === this.chosen) paint(index, false);
    this.stale = false;
  }

  paint(style) {
    if (this.stale) this.paintPoints(style);
    const { context: c, ratio, size } = this;
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.clearRect(0, 0, this.canvas.width, this.canvas.height);
    c.drawImage(this.points, 0, 0);
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.strokeStyle = style.color;
    c.lineWidth = 2;
    if (this.at >= 0) {
      c.beginPath();
      c.arc(...this.place(this.at), size + 4, 0, 2 * Math.PI);
      c.stroke();
    }
    if (this.crossed) {
      const [x, y] = [this.width / 2, this.height / 2];
      c.beginPath();
      for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
        c.moveTo(x + 8 * dx, y + 8 * dy);
        c.lineTo(x + 18 * dx, y + 18 * dy);
      }
      c.stroke();
    }
    this.canvas.dataset.drawn = this.data.ids.length; // for tests
  }

  highlight(label) {
    this.chosen = label;
    this.point(-1);
    this.draw();
  }

  reset() {
    this.view = { zoom: 1, x: 0, y: 0 };
    this.point(-1);
    this.draw();
  }

  // Zoom around the point (x, y) of the canvas.
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const old = this.view.zoom;
    const zoom = Math.min(200, Math.max(0.5, old * factor));
    const [dx, dy] = [x - this.width / 2, y - this.height / 2];
    this.view = { zoom, x: this.view.x + dx / old - dx / zoom, y: this.view.y + dy / old - dy / zoom };
    this.draw();
  }

  pan(dx, dy) {
    this.view.x -= dx / this.view.zoom;
    this.view.y -= dy / this.view.zoom;
    this.draw();
  }

  nearest(x, y, reach) {
    let [best, closest] = [reach * reach, -1];
    for (let index = 0; index < this.data.ids.length; index += 1) {
      if (this.chosen >= 0 && this.data.labels[index] !== this.chosen) continue;
      const [px, py] = this.place(index);
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < best) [best, closest] = [distance, index];
    }
    return closest;
  }

  // Show the card of an item; -1 hides it.
  point(index) {
    if (index === this.at) return;
    this.at = index;
    this.card.hidden = index < 0;
    if (index >= 0) this.fillCard(index);
    this.draw({ stale: false });
  }

  fillCard(index) {
    const item = this.item(index);
    const [x, y] = this.place(index);
    this.card.href = itemLink(item.id);
    this.card.style.left = `${Math.min(Math.max(x + 14, 0), this.width - 170)}px`;
    this.card.style.top = `${y > this.height - 190 ? Math.max(0, y - 190) : y + 14}px`;
    this.card.replaceChildren(thumbnail(item), h("span", {}, breakable(item.class_name)));
  }

  item(index) {
    const { ids, texts, class_names: names, labels } = this.data;
    return { id: ids[index], class_name: names[labels[index]], text: texts?.[index] ?? null, has_picture: this.images };
  }

  cross(shown) {
    this.crossed = shown;
    this.draw({ stale: false });
  }

  onWheel(event) {
    event.preventDefault();
    this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.offsetX, event.offsetY);
  }

  onDown(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    this.moved = 0;
    this.cross(false);
  }

  onMove(event) {
    const [x, y] = [event.offsetX, event.offsetY];
    const before = this.pointers.get(event.pointerId);
    if (!before) return this.point(this.nearest(x, y, REACH));
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    this.pointers.set(event.pointerId, [x, y]);
    this.moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
    if (others.length) {
      const [ox, oy] = others[0];
      const apart = ([px, py]) => Math.max(1, Math.hypot(px - ox, py - oy));
      this.zoom(apart([x, y]) / apart(before), (x + ox) / 2, (y + oy) / 2);
    } else {
      this.pan(x - before[0], y - before[1]);
    }
    return undefined;
  }

  onUp(event) {
    const single = this.pointers.size === 1 && this.moved < 6 && event.type === "pointerup";
    this.pointers.delete(event.pointerId);
    if (!single) return;
    const index = this.nearest(event.offsetX, event.offsetY, 2 * REACH);
    if (event.pointerType === "mouse" && index >= 0) location.hash = itemLink(this.data.ids[index]);
    else this.point(index);
  }

  onKey(event) {
    const step = 40;
    const moves = {
      ArrowLeft: () => this.pan(step, 0), ArrowRight: () => this.pan(-step, 0),
      ArrowUp: () => this.pan(0, step), ArrowDown: () => this.pan(0, -step),
      "+": () => this.zoom(1.3), "=": () => this.zoom(1.3), "-": () => this.zoom(1 / 1.3), 0: () => this.reset(),
    };
    if (event.key === "Enter" && this.at >= 0) location.hash = itemLink(this.data.ids[this.at]);
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    moves[event.key]();
    this.cross(true);
    this.point(this.nearest(this.width / 2, this.height / 2, 3 * REACH));
    announce(this.at < 0 ? "no item here" : `${this.item(this.at).class_name}, ${nameOf(this.item(this.at))}`);
  }
}

function bounds(values) {
  let [least, most] = [Infinity, -Infinity];
  for (const value of values) [least, most] = [Math.min(least, value), Math.max(most, value)];
  return least > most ? [0, 0] : [least, most];
}
