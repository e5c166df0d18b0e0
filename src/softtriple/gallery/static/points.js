// The points of the map: a grid that finds them by place, and a painter that blends their marks pixel by pixel, which
// stays smooth with 100 000 points and needs no GPU.

const PER_CELL = 8;

export class Grid {
  constructor(x, y) {
    Object.assign(this, { x, y, left: Infinity, right: -Infinity, bottom: Infinity, top: -Infinity });
    for (const value of x) [this.left, this.right] = [Math.min(this.left, value), Math.max(this.right, value)];
    for (const value of y) [this.bottom, this.top] = [Math.min(this.bottom, value), Math.max(this.top, value)];
    if (!x.length) [this.left, this.right, this.bottom, this.top] = [0, 0, 0, 0];
    this.span = [Math.max(this.right - this.left, 1e-9), Math.max(this.top - this.bottom, 1e-9)];
    this.side = Math.min(256, Math.max(1, Math.ceil(Math.sqrt(x.length / PER_CELL))));
    this.fill();
  }

  // Points in the order of their cells: those of cell c are order[start[c]] to order[start[c + 1] - 1].
  fill() {
    const { x, y, side } = this;
    const cells = Uint32Array.from(x, (_, index) => this.row(y[index]) * side + this.column(x[index]));
    this.start = new Uint32Array(side * side + 1);
    for (const cell of cells) this.start[cell + 1] += 1;
    for (let cell = 0; cell < side * side; cell += 1) this.start[cell + 1] += this.start[cell];
    const next = this.start.slice();
    this.order = new Uint32Array(x.length);
    // Neighbours in the store are often of one class: taken in a mixed order, no class covers all others.
    for (const index of mixed(x.length)) this.order[next[cells[index]]++] = index;
    [this.xs, this.ys] = [this.inOrder(x), this.inOrder(y)]; // read one after the other, several times as fast
  }

  inOrder(values) {
    return values.constructor.from(this.order, (index) => values[index]);
  }

  column(value) {
    return this.bounded((value - this.left) / this.span[0]);
  }

  row(value) {
    return this.bounded((value - this.bottom) / this.span[1]);
  }

  bounded(share) {
    return Math.min(this.side - 1, Math.max(0, Math.floor(share * this.side)));
  }

  // The points in the box, and a few around it, row by row: from one place in the order to before another.
  *ranges([left, bottom, right, top]) {
    const [first, last] = [this.column(left), this.column(right)];
    for (let row = this.row(bottom); row <= this.row(top); row += 1) yield [this.start[row * this.side + first], this.start[row * this.side + last + 1]];
  }

  // Calls visit(index) for the same points.
  around(box, visit) {
    for (const [from, to] of this.ranges(box)) for (let place = from; place < to; place += 1) visit(this.order[place]);
  }

  // The points inside a polygon of [x, y] corners.
  inside(corners) {
    const [xs, ys] = [corners.map(([x]) => x), corners.map(([, y]) => y)];
    const found = [];
    this.around([Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)], (index) => {
      if (contains(xs, ys, this.x[index], this.y[index])) found.push(index);
    });
    return found.sort((a, b) => a - b);
  }
}

// All numbers below `length`, in steps that share no factor with it.
function* mixed(length) {
  const common = (a, b) => (b ? common(b, a % b) : a);
  let step = Math.max(1, Math.floor(length * 0.618));
  while (common(length, step) > 1) step += 1;
  for (let taken = 0, index = 0; taken < length; taken += 1, index = (index + step) % length) yield index;
}

// Whether a ray to the right crosses the outline an odd number of times.
function contains(xs, ys, x, y) {
  let odd = false;
  for (let i = 0, j = xs.length - 1; i < xs.length; j = i, i += 1) {
    if (ys[i] > y !== ys[j] > y && x < ((xs[j] - xs[i]) * (y - ys[i])) / (ys[j] - ys[i]) + xs[i]) odd = !odd;
  }
  return odd;
}

// An image of `width` × `height` pixels that marks are blended into.
export class Picture {
  constructor(width, height) {
    Object.assign(this, { width, height, image: new ImageData(width, height) });
    this.pixels = new Int32Array(this.image.data.buffer);
  }

  clear(color) {
    this.pixels.fill(OPAQUE | packed(color));
  }

  // `brush`, with its middle at (x, y). A pixel is one integer: red and blue are blended in one multiplication, green in another.
  stamp(x, y, { side, offsets, redBlue, green, rest }) {
    const { pixels, width, height } = this;
    const left = Math.round(x - side / 2);
    const top = Math.round(y - side / 2);
    if (left < 0 || top < 0 || left + side > width || top + side > height) return; // the rim of the canvas hides it
    const start = top * width + left;
    for (let place = 0; place < offsets.length; place += 1) {
      const at = start + offsets[place];
      const under = pixels[at];
      const share = rest[place];
      pixels[at] = OPAQUE | (((Math.imul(under & RED_BLUE, share) + redBlue[place]) >>> 7) & RED_BLUE) | (((Math.imul(under & GREEN, share) + green[place]) >>> 7) & GREEN);
    }
  }
}

const [OPAQUE, RED_BLUE, GREEN] = [0xff << 24, 0xff00ff, 0xff00]; // of a pixel: alpha, blue, green and red

const packed = ([red, green, blue]) => (blue << 16) | (green << 8) | red;

// A mark {color, alpha} in the shape of a mask, for `stamp` on a picture of this width: per pixel its offset, what it
// adds (weights are of 128, so that products fit in 31 bits) and what it leaves of the pixel.
export function brushOf({ side, columns, rows, covers }, { color, alpha }, width) {
  const weights = covers.map((cover) => Math.round((cover * alpha) / 2));
  return {
    side,
    offsets: rows.map((row, place) => row * width + columns[place]),
    redBlue: weights.map((weight) => (packed(color) & RED_BLUE) * weight),
    green: weights.map((weight) => (packed(color) & GREEN) * weight),
    rest: weights.map((weight) => 128 - weight),
  };
}
