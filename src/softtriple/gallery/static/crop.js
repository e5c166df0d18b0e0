// Cut a region out of an image before searching: drag on the image, or move the four edges by keyboard.

import { sharpen } from "./api.js";
import { h } from "./dom.js";

const SMALL = 240; // pixels; smaller images are enlarged
const EDGES = { left: 15, top: 15, right: 85, bottom: 85 }; // per cent, at first

// A dialog that calls `then(file)` with the region.
export async function crop(file, then) {
  const url = URL.createObjectURL(file);
  const image = h("img", { src: url, alt: "The image to cut from", draggable: "false" });
  sharpen(image);
  await image.decode();
  const scale = Math.ceil(SMALL / Math.max(image.naturalWidth, image.naturalHeight));
  if (scale > 1) image.style.width = `${scale * image.naturalWidth}px`;
  const frame = h("div", { class: "region", "aria-hidden": "true" });
  const inputs = Object.fromEntries(Object.entries(EDGES).map(([name, value]) => [name, h("input", { type: "range", min: 0, max: 100, value, oninput: () => show() })]));
  const edges = () => {
    const [left, right] = ordered(inputs.left.value, inputs.right.value);
    const [top, bottom] = ordered(inputs.top.value, inputs.bottom.value);
    return { left, top, right, bottom };
  };
  const show = () => {
    const { left, top, right, bottom } = edges();
    Object.assign(frame.style, { left: `${left}%`, top: `${top}%`, width: `${right - left}%`, height: `${bottom - top}%` });
  };
  let start = null;
  const place = (event) => {
    const box = image.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map((share) => Math.round(100 * Math.min(1, Math.max(0, share))));
  };
  const drag = (event) => {
    if (event.type === "pointerdown") {
      stage.setPointerCapture(event.pointerId);
      start = place(event);
    } else if (event.type !== "pointermove") start = null;
    if (!start) return;
    const [x, y] = place(event);
    [inputs.left.value, inputs.top.value, inputs.right.value, inputs.bottom.value] = [Math.min(x, start[0]), Math.min(y, start[1]), Math.max(x, start[0]), Math.max(y, start[1])];
    show();
  };
  const stage = h("div", { class: "stage", onpointerdown: drag, onpointermove: drag, onpointerup: drag, onpointercancel: drag }, image, frame);
  const take = async () => {
    const region = await cut(image, edges(), file);
    dialog.close();
    then(region);
  };
  const dialog = h("dialog", { class: "crop", "aria-label": "Search a region of the image" },
    h("h2", {}, "Search a region"), h("p", {}, "Drag over the part to search for, or move its edges."), stage,
    h("div", { class: "edges" }, Object.entries(inputs).map(([name, input]) => h("label", {}, `${name[0].toUpperCase()}${name.slice(1)} edge`, input))),
    h("div", { class: "buttons-row" }, h("button", { type: "button", class: "main", onclick: take }, "Search this region"), h("button", { type: "button", onclick: () => dialog.close() }, "Cancel")));
  dialog.addEventListener("close", () => {
    URL.revokeObjectURL(url);
    dialog.remove();
  });
  document.getElementById("view").append(dialog);
  show();
  dialog.showModal();
}

function ordered(a, b) {
  const [low, high] = [Number(a), Number(b)].sort((x, y) => x - y);
  return high - low < 2 ? [Math.max(0, low - 1), Math.min(100, high + 1)] : [low, high];
}

async function cut(image, { left, top, right, bottom }, file) {
  const [x, y, width, height] = [left * image.naturalWidth, top * image.naturalHeight, (right - left) * image.naturalWidth, (bottom - top) * image.naturalHeight].map((length) => Math.round(length / 100));
  const canvas = h("canvas", { width: Math.max(1, width), height: Math.max(1, height) });
  canvas.getContext("2d").drawImage(image, x, y, canvas.width, canvas.height, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  return new File([blob], `region of ${file.name}`, { type: "image/png" });
}
