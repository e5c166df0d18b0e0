// Elements without a framework. Text is always set as text, so that nothing from the data can become markup.

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

// The name of a class, which may break after an underscore, a dot or a slash.
export function breakable(text) {
  return text.split(/(?<=[_./])/).flatMap((part, place) => (place ? [h("wbr"), part] : [part]));
}

// What to call an item: the last part of an id that is a path; one that is a hash is no name for people.
export function nameOf(item) {
  return item.id.startsWith("sha256:") ? `an item of ${item.class_name}` : item.id.split(/[/\\]/).pop() || item.id;
}

export function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;
}

export function percent(share) {
  return share === null ? "–" : `${(100 * share).toFixed(1)}\u00a0%`;
}

export const itemLink = (id) => `#/item/${encodeURIComponent(id)}`;
export const classLink = (name) => `#/class/${encodeURIComponent(name)}`;

export function errorBox(error) {
  return h("p", { class: "error", role: "alert" }, error.message);
}

// Say something to those who cannot see that the page has changed.
export function announce(text) {
  document.getElementById("status").textContent = text;
}
