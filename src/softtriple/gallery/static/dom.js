// Building elements without a framework. Text is always set as text, so data can never become markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

// A name that may wrap after an underscore, a dot or a slash.
export function breakable(text) {
  return text.split(/(?<=[_./])/).flatMap((part, place) => (place ? [h("wbr"), part] : [part]));
}

// A readable name of an item: its text, or the file name if its id is a path, or its class and the first digits of a hash.
export function nameOf(item) {
  if (item.text) return item.text.length > 80 ? `${item.text.slice(0, 80).trimEnd()}…` : item.text;
  return item.id.startsWith("sha256:") ? `${item.class_name} · ${item.id.slice(7, 15)}` : item.id.split(/[/\\]/).pop() || item.id;
}

export function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;
}

export function percent(share) {
  return share === null ? "–" : `${(100 * share).toFixed(1)}\u00a0%`;
}

// A cosine, rounded, and without "-0.000".
export function cosine(score, digits = 3) {
  return score.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−");
}

// The number of digits, at least 3, with which two different numbers look different.
export function digitsApart(one, other) {
  for (let digits = 3; digits < 17; digits += 1) if (one.toFixed(digits) !== other.toFixed(digits)) return digits;
  return 17;
}

export const itemLink = (id) => `#/item/${encodeURIComponent(id)}`;
export const classLink = (name) => `#/class/${encodeURIComponent(name)}`;

export function errorBox(error) {
  return h("p", { class: "error", role: "alert" }, error.message);
}

export function emptyStore() {
  return h("p", { class: "empty" }, "The store is empty. Add items with: ", h("code", {}, "softtriple index RUN DATA --store URI"));
}

// Announce a change to screen readers.
export function announce(text) {
  document.getElementById("status").textContent = text;
}

// Change parameters in the address, so that a reload, "back" or a link shows the same; null removes one.
export function remember(changes) {
  const [path, query = ""] = location.hash.split("?");
  const parameters = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined) parameters.delete(name);
    else parameters.set(name, value);
  }
  history.replaceState(history.state, "", `${path || "#/"}${parameters.size ? `?${parameters}` : ""}`);
}
