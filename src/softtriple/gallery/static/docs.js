// The documentation of the JSON API, rendered from /openapi.json.

import { errorBox, h } from "./dom.js";

async function show() {
  const place = document.getElementById("operations");
  try {
    const openapi = await (await fetch("/openapi.json")).json();
    const operations = Object.entries(openapi.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => draw(openapi, path, method, operation)));
    place.replaceChildren(...operations);
    for (const page of ["audit", "compare"]) document.querySelector(`nav a[href="/#/${page}"]`).hidden = !(`/api/${page}` in openapi.paths);
  } catch (error) {
    place.replaceChildren(errorBox(error));
  }
}

function draw(openapi, path, method, operation) {
  const parameters = operation.parameters ?? [];
  const answer = operation.responses[200].content ?? {};
  return h("section", { class: "operation" },
    h("h2", {}, h("code", {}, `${method.toUpperCase()} ${path}`)),
    h("p", {}, operation.description),
    parameters.length ? h("table", {},
      h("thead", {}, h("tr", {}, ["Parameter", "Type", "Description"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, parameters.map(parameter))) : null,
    body(openapi, path, operation.requestBody?.content),
    Object.entries(answer).map(([type, { schema }]) => h("details", {}, h("summary", {}, `Response: ${type}`),
      schema?.$ref ? h("pre", {}, JSON.stringify(example(openapi, schema), null, 2)) : null)));
}

function body(openapi, path, content) {
  if (!content) return null;
  const json = content["application/json"];
  if (!json) return h("p", {}, "Request body: an image file. ", h("code", {}, `curl --data-binary @bird.jpg "${location.origin}${path}?k=5"`));
  return h("details", {}, h("summary", {}, "Request body: application/json"), h("pre", {}, JSON.stringify(example(openapi, json.schema), null, 2)));
}

function parameter(one) {
  const kinds = [one.schema, ...(one.schema.anyOf ?? [])];
  const text = kinds.flatMap((kind) => kind.enum?.join(" or ") ?? (kind.type === "array" ? kind.items.type : kind.type) ?? []).filter((kind) => kind !== "null").join(" or ");
  const { minimum, maximum, default: initial } = one.schema;
  const range = minimum === undefined ? "" : ` from ${minimum} to ${maximum}`;
  const preset = initial === undefined || initial === null || Array.isArray(initial) ? null : `default ${initial}`;
  const notes = [one.required ? "required" : null, preset].filter(Boolean);
  return h("tr", {}, h("th", { scope: "row" }, h("code", {}, one.name)), h("td", {}, text + range),
    h("td", {}, [one.description, notes.length ? `(${notes.join(", ")})` : ""].filter(Boolean).join(" ")));
}

// The fields of a response with the types of their values.
function example(openapi, schema) {
  if (schema.$ref) return example(openapi, openapi.components.schemas[schema.$ref.split("/").pop()]);
  if (schema.anyOf) return example(openapi, schema.anyOf[0]);
  if (schema.type === "object") return Object.fromEntries(Object.entries(schema.properties ?? {}).map(([name, inner]) => [name, example(openapi, inner)]));
  if (schema.type === "array") return [example(openapi, schema.items)];
  return schema.const ?? schema.enum?.[0] ?? schema.type;
}

show();
