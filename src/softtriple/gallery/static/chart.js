// The canvas of the map: moved by wheel, pinch, drag and keys; areas are selected by box and lasso.

import { markOf, masksOf } from "./marks.js";
import { Grid, Picture, brushOf } from "./points.js";

const REACH = 14; // pixels around the pointer
const CORNERS = 60; // of a lasso in the address
const FINEST = 2; // pixels per CSS pixel; finer ones are hardly seen, and cost as much time as they are many
// Painting gets at most BUDGET milliseconds of a frame. If it needs more, then while the view moves it pauses PAUSE times
// as long between two pictures.
const [BUDGET, PAUSE] = [6, 9];

// `on` has: point(row or -1, place), open(row), moved(view), selected(corners or null)
export class Chart {
  constructor(canvas, data, on) {
    Object.assign(this, { canvas, on, at: -1, crossed: false, mode: "pan", area: null, drawn: null, pointers: new Map(), moved: 0, frame: null, stale: true, masks: {}, painting: null, painted: null, shown: null, next: 0 });
    this.grid = new Grid(Float32Array.from(data.x), Float32Array.from(data.y));
    this.context = canvas.getContext("2d");
    this.points = document.createElement("canvas"); // the points alone, so that ring, cross and outline move without repainting them
    this.middle = { zoom: 1, x: (this.grid.left + this.grid.right) / 2, y: (this.grid.bottom + this.grid.top) / 2 };
    this.view = this.middle;
    this.marks = [markOf(-1, true)];
    this.kinds = new Uint32Array(data.x.length); // of `marks`, in the order of the grid
    this.hidden = () => false; // whether a row is faint and not to be pointed at
    const listen = (types, handler) => types.split(" ").forEach((type) => canvas.addEventListener(type, handler.bind(this), { passive: false }));
    listen("wheel", this.onWheel);
    listen("pointerdown", this.onDown);
    listen("pointermove", this.onMove);
    listen("pointerup pointercancel", this.onUp);
    listen("pointerleave", (event) => event.pointerType === "touch" || this.pointers.size || this.point(-1)); // a finger leaves with every tap
    listen("keydown", this.onKey);
    listen("blur", () => this.cross(false));
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
    const ratio = Math.min(FINEST, devicePixelRatio || 1);
    [this.width, this.height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    for (const canvas of [this.canvas, this.points]) [canvas.width, canvas.height] = [this.width * ratio, this.height * ratio].map(Math.round);
    this.picture = this.points.width && this.points.height ? new Picture(this.points.width, this.points.height) : null; // null: not laid out
    this.scale = 0.92 * Math.min(this.width / this.grid.span[0], this.height / this.grid.span[1]);
    this.ratio = ratio;
    this.draw();
  }

  // From the plane of the data to pixels of the canvas, and back.
  place([x, y]) {
    const factor = this.scale * this.view.zoom;
    return [this.width / 2 + factor * (x - this.view.x), this.height / 2 - factor * (y - this.view.y)];
  }

  plane([x, y]) {
    const factor = this.scale * this.view.zoom;
    return [this.view.x + (x - this.width / 2) / factor, this.view.y - (y - this.height / 2) / factor];
  }

  placeOf(row) {
    return this.place([this.grid.x[row], this.grid.y[row]]);
  }

  // The box of the plane that `reach` pixels around a rectangle of the canvas cover.
  box(left, top, right, bottom, reach) {
    return [...this.plane([left - reach, bottom + reach]), ...this.plane([right + reach, top - reach])];
  }

  // Paint once before the next frame, however often it is called.
  draw({ stale = true } = {}) {
    this.stale ||= stale;
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      if (this.picture) this.paint(getComputedStyle(this.canvas));
    });
  }

  get radius() {
    const number = this.grid.x.length;
    const least = number > 30_000 ? 1.5 : number > 3000 ? 2.4 : 3.2;
    return Math.round(4 * this.ratio * Math.min(8, least * Math.sqrt(this.view.zoom))) / 4;
  }

  // One for each of `marks`, many of which are the same.
  brushes() {
    const width = this.picture.width;
    if (this.masks.radius !== this.radius || this.masks.width !== width) this.masks = { radius: this.radius, width, shapes: masksOf(this.radius), brushes: new Map() };
    const { shapes, brushes } = this.masks;
    return this.marks.map((mark) => {
      if (!brushes.has(mark)) brushes.set(mark, brushOf(shapes[mark.shape], mark, width));
      return brushes.get(mark);
    });
  }

  // Points that are wrong, as after a change of colour, are painted at once. Those that have only moved are painted over
  // several frames if they are many: until that is done, `shift` shows the last picture where the view is now.
  paintPoints(style) {
    const started = performance.now();
    const due = this.view === this.shown || started >= this.next;
    if (this.stale || (due && !this.painting && this.painted !== this.view)) this.painting = { view: this.view, strokes: this.strokes(style), cost: 0 };
    if (!this.painting) return;
    const { view, strokes, cost } = this.painting;
    const end = this.stale ? Infinity : started + BUDGET;
    this.stale = false;
    let [done, now] = [false, started];
    while (!done && now < end) [done, now] = [strokes.next().done, performance.now()];
    this.painting.cost = cost + now - started;
    if (!done) return;
    this.points.getContext("2d").putImageData(this.picture.image, 0, 0);
    this.next = this.painting.cost > BUDGET ? now + PAUSE * this.painting.cost : now;
    Object.assign(this, { painted: view, painting: null });
  }

  // Paints all points into the picture, and stops after each row of the grid.
  *strokes(style) {
    const { ratio, picture, kinds, grid: { xs, ys } } = this;
    const brushes = this.brushes();
    picture.clear(style.backgroundColor.match(/[\d.]+/g).slice(0, 3).map(Number));
    const factor = ratio * this.scale * this.view.zoom;
    const [left, top] = [(ratio * this.width) / 2 - factor * this.view.x, (ratio * this.height) / 2 + factor * this.view.y];
    const around = this.box(0, 0, this.width, this.height, 10);
    for (const faint of [true, false]) { // the others above them
      const chosen = brushes.map((brush, kind) => (this.marks[kind].faint === faint ? brush : null));
      if (!chosen.some(Boolean)) continue;
      const stroke = (from, to) => {
        for (let place = from; place < to; place += 1) {
          const brush = chosen[kinds[place]];
          if (brush !== null) picture.stamp(left + factor * xs[place], top - factor * ys[place], brush);
        }
      };
      for (const [from, to] of this.grid.ranges(around)) {
        stroke(from, to);
        yield;
      }
    }
  }

  // Place what is drawn next where the view is now, as it was painted for another view.
  shift(style) {
    const { context: c, canvas, view, painted } = this;
    const factor = this.ratio * this.scale * view.zoom;
    const scale = view.zoom / painted.zoom;
    c.fillStyle = style.backgroundColor;
    c.fillRect(0, 0, canvas.width, canvas.height);
    c.setTransform(scale, 0, 0, scale, ((1 - scale) * canvas.width) / 2 + factor * (painted.x - view.x), ((1 - scale) * canvas.height) / 2 - factor * (painted.y - view.y));
  }

  paint(style) {
    const { context: c, ratio } = this;
    this.paintPoints(style);
    c.setTransform(1, 0, 0, 1, 0, 0);
    if (this.painted !== this.view) {
      this.shift(style);
      this.draw({ stale: false }); // until it is painted
    }
    c.drawImage(this.points, 0, 0);
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.strokeStyle = style.color;
    c.lineWidth = 2;
    const corners = this.drawn ?? this.area?.map((corner) => this.place(corner));
    if (corners?.length) {
      const outline = new Path2D(`M${corners.map((corner) => corner.map((length) => length.toFixed(1)).join(" ")).join("L")}Z`);
      c.globalAlpha = 0.07;
      c.fillStyle = style.color;
      c.fill(outline);
      c.globalAlpha = 1;
      c.setLineDash([6, 4]);
      c.stroke(outline);
      c.setLineDash([]);
    }
    if (this.at >= 0) {
      c.beginPath();
      c.arc(...this.placeOf(this.at), this.radius / ratio + 4, 0, 2 * Math.PI);
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
    this.shown = this.view;
    this.canvas.dataset.drawn = this.grid.x.length; // for tests
  }

  look(view) {
    this.view = view;
    this.on.moved(view);
    this.draw({ stale: false });
  }

  reset() {
    this.point(-1);
    this.look(this.middle);
  }

  // Zoom around the point (x, y) of the canvas.
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const before = this.plane([x, y]);
    const zoom = Math.min(500, Math.max(0.5, this.view.zoom * factor));
    this.view = { ...this.view, zoom };
    const after = this.plane([x, y]);
    this.look({ zoom, x: this.view.x + before[0] - after[0], y: this.view.y + before[1] - after[1] });
  }

  pan(dx, dy) {
    const factor = this.scale * this.view.zoom;
    this.look({ ...this.view, x: this.view.x - dx / factor, y: this.view.y + dy / factor });
  }

  nearest(x, y, reach) {
    let [best, closest] = [reach * reach, -1];
    this.grid.around(this.box(x, y, x, y, reach), (row) => {
      const [px, py] = this.placeOf(row);
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < best && !this.hidden(row)) [best, closest] = [distance, row];
    });
    return closest;
  }

  point(row) {
    if (row === this.at) return;
    this.at = row;
    this.on.point(row, row < 0 ? null : this.placeOf(row));
    this.draw({ stale: false });
  }

  // Select everything inside `corners`, of the plane; null selects nothing.
  select(corners) {
    this.area = corners;
    this.drawn = null;
    this.on.selected(corners);
    this.draw({ stale: false });
  }

  selectView() {
    const [left, bottom, right, top] = this.box(0, 0, this.width, this.height, -2);
    this.select([[left, bottom], [right, bottom], [right, top], [left, top]]);
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
    this.pointed = this.at;
    this.point(-1);
    this.cross(false);
    const mode = event.shiftKey ? "box" : this.mode;
    this.drawing = this.pointers.size === 1 && mode !== "pan" ? mode : null;
    this.drawn = this.drawing ? [[event.offsetX, event.offsetY]] : null;
  }

  onMove(event) {
    const here = [event.offsetX, event.offsetY];
    const before = this.pointers.get(event.pointerId);
    if (!before) return this.point(this.nearest(...here, REACH));
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    this.pointers.set(event.pointerId, here);
    this.moved += Math.abs(here[0] - before[0]) + Math.abs(here[1] - before[1]);
    if (others.length) {
      this.drawn = this.drawing = null;
      const [ox, oy] = others[0];
      const apart = ([px, py]) => Math.max(1, Math.hypot(px - ox, py - oy));
      this.zoom(apart(here) / apart(before), (here[0] + ox) / 2, (here[1] + oy) / 2);
    } else if (this.drawing) {
      const [[x, y]] = this.drawn;
      this.drawn = this.drawing === "lasso" ? [...this.drawn, here] : [[x, y], [here[0], y], here, [x, here[1]]];
      this.draw({ stale: false });
    } else {
      this.pan(here[0] - before[0], here[1] - before[1]);
    }
    return undefined;
  }

  onUp(event) {
    const clicked = this.pointers.size === 1 && this.moved < 6 && event.type === "pointerup";
    const drawn = this.pointers.size === 1 && event.type === "pointerup" ? this.drawn : null;
    this.pointers.delete(event.pointerId);
    this.drawn = this.drawing = null;
    if (!clicked) {
      const step = Math.ceil((drawn?.length ?? 0) / CORNERS);
      if (drawn && drawn.length > 2) this.select(drawn.filter((_, place) => place % step === 0).map((corner) => this.plane(corner)));
      return;
    }
    const row = this.nearest(event.offsetX, event.offsetY, 2 * REACH);
    // A mouse points before it clicks; of a finger, the first tap points and the second one opens.
    if (row >= 0 && (event.pointerType === "mouse" || row === this.pointed)) this.on.open(row);
    else this.point(row);
  }

  onKey(event) {
    const step = 40;
    const moves = {
      ArrowLeft: () => this.pan(step, 0), ArrowRight: () => this.pan(-step, 0),
      ArrowUp: () => this.pan(0, step), ArrowDown: () => this.pan(0, -step),
      "+": () => this.zoom(1.3), "=": () => this.zoom(1.3), "-": () => this.zoom(1 / 1.3), 0: () => this.reset(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" && this.at >= 0) this.on.open(this.at);
    if (event.key === "Escape") this.select(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]();
    this.cross(true);
    this.at = -1; // say it again, even if it is the same
    this.point(this.nearest(this.width / 2, this.height / 2, 3 * REACH));
  }
}
