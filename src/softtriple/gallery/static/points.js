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

  // Calls visit(index) for all points in the box, and for a few around it.
  around([left, bottom, right, top], visit) {
    const [first, last] = [this.column(left), this.column(right)];
    for (let row = this.row(bottom); row <= this.row(top); row += 1) {
      const end = this.start[row * this.side + last + 1];
      for (let place = this.start[row * this.side + first]; place < end; place += 1) visit(this.order[place]);
    }
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
    this.image = new ImageData(width, height);
    this.bytes = new Uint8Array(this.image.data.buffer); // its integers wrap instead of being clamped, which is faster
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  clear([red, green, blue]) {
    this.bytes.set([red, green, blue, 255]);
    this.pixels.fill(this.pixels[0]);
  }

  // The mark {color: [r, g, b], alpha} in the shape of `mask`, in the middle of pixel (x, y).
  stamp(x, y, { side, columns, rows, covers }, { color, alpha }) {
    const { bytes, image: { width, height } } = this;
    const [left, top] = [Math.round(x - side / 2), Math.round(y - side / 2)];
    if (left < 0 || top < 0 || left + side > width || top + side > height) return; // the rim of the canvas hides it
    const [red, green, blue] = color;
    const start = top * width + left;
    for (let place = 0; place < covers.length; place += 1) {
      const cover = covers[place] * alpha;
      const at = 4 * (start + rows[place] * width + columns[place]);
      bytes[at] += ((red - bytes[at]) * cover) >> 8;
      bytes[at + 1] += ((green - bytes[at + 1]) * cover) >> 8;
      bytes[at + 2] += ((blue - bytes[at + 2]) * cover) >> 8;
    }
  }
}
