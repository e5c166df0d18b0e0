// Requests to the JSON API, with tokens, retries while the server is busy, and errors as exceptions.

import { h, nameOf } from "./dom.js";

const TRIES = 30;
const KEY = "softtriple-token";
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

let asking = null;

export function get(path, parameters = {}, signal = undefined, kind = "json") {
  return call(address(path, parameters), { signal }, kind);
}

export function post(path, body) {
  return call(`/api/${path}`, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
}

export function sendImage(file, parameters = {}, signal = undefined) {
  const type = file.type || "application/octet-stream";
  return call(address("search/image", parameters), { signal, method: "POST", body: file, headers: { "Content-Type": type } });
}

// The image of an item, or its text, or its name.
export function thumbnail(item, { size = "small", alt = "" } = {}) {
  if (item.text !== null) return h("span", { class: "text" }, item.text);
  if (!item.has_picture) return h("span", { class: "text name" }, nameOf(item));
  const image = h("img", { alt, decoding: "async" });
  const missing = () => image.replaceWith(h("span", { class: "text name" }, "no image: ", nameOf(item)));
  image.addEventListener("error", missing);
  sharpen(image);
  const source = address("thumbnail", { id: item.id, size });
  if (sessionStorage.getItem(KEY) === null) {
    image.loading = "lazy";
    image.src = source;
  } else {
    whenVisible(image, () => load(image, source).catch(missing));
  }
  return image;
}

// Tiny images are enlarged without blurring.
export function sharpen(image) {
  image.addEventListener("load", () => image.classList.toggle("pixels", image.naturalWidth <= 64));
}

// An img element cannot send a token, so the image is fetched and shown from memory.
async function load(image, source) {
  const response = await request(source, {});
  if (!response.ok) throw new Error(response.statusText);
  const url = URL.createObjectURL(await response.blob());
  image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
  image.src = url;
}

function whenVisible(element, action) {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    action();
  }, { rootMargin: "200px" });
  observer.observe(element);
}

function address(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== "")
    .flatMap(([name, value]) => [value].flat().map((one) => [name, one])); // a list is a repeated parameter
  return `/api/${path}?${new URLSearchParams(given)}`;
}

async function call(url, options, kind = "json") {
  const response = await request(url, options);
  if (response.ok && kind === "text") return response.text();
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw Object.assign(new Error(answer.error || `the server responded with status ${response.status}`), { status: response.status });
  return answer;
}

async function request(url, options) {
  let wrong = false;
  for (let tried = 1; ; tried += 1) {
    const token = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(token === null ? {} : { Authorization: `Bearer ${token}` }) };
    const response = await fetch(url, { ...options, headers }).catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new Error("the server does not respond; is it still running?");
    });
    if (response.status === 401) {
      // Another request may have asked for the token in the meantime.
      if (sessionStorage.getItem(KEY) === token) await askForToken(wrong || token !== null);
      wrong = true;
    } else if (response.status === 429 && tried < TRIES) {
      await pause(Number(response.headers.get("Retry-After")) || 2);
    } else {
      return response;
    }
  }
}

function askForToken(wrong) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("token");
    dialog.querySelector(".error").textContent = wrong ? "This token was not accepted." : "";
    const input = dialog.querySelector("input");
    input.value = "";
    // If closed without a token, the next request asks again.
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(KEY, input.value.trim().replace(/[^ -~]/g, "?")); // only ASCII is valid in a header
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}
