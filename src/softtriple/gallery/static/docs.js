// The documentation of the JSON interface, drawn from /openapi.json.

import { errorBox, h } from "./dom.js";

async function show() {
  const place = document.getElementById("operations");
  try {
    const described = await (await fetch("/openapi.json")).json();
    const operations = Object.entries(described.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => draw(described, path, method, operation)));
    place.replaceChildren(...operations);
  } catch (error) {
    place.replaceChildren(errorBox(error));
  }
}

function draw(described, path, method, operation) {
  const parameters = operation.parameters ?? [];
  const answer = operation.responses[200].content ?? {};
  return h("section", { class: "operation" },
    h("h2", {}, h("code", {}, `${method.toUpperCase()} ${path}`)),
    h("p", {}, operation.description),
    parameters.length ? h("table", {},
      h("thead", {}, h("tr", {}, ["Parameter", "Type", "Meaning"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, parameters.map(parameter))) : null,
    operation.requestBody ? h("p", {}, "Body: the bytes of a picture. ", h("code", {}, `curl --data-binary @bird.jpg "${location.origin}${path}?k=5"`)) : null,
    Object.entries(answer).map(([type, { schema }]) => h("details", {}, h("summary", {}, `Answer: ${type}`),
      schema?.$ref ? h("pre", {}, JSON.stringify(example(described, schema), null, 2)) : null)));
}

function parameter(one) {
  const kinds = [one.schema, ...(one.schema.anyOf ?? [])];
  const text = kinds.flatMap((kind) => kind.enum?.join(" or ") ?? kind.type ?? []).filter((kind) => kind !== "null").join(" or ");
  const { minimum, maximum, default: usual } = one.schema;
  const range = minimum === undefined ? "" : ` from ${minimum} to ${maximum}`;
  const said = [one.required ? "required" : null, usual === undefined || usual === null ? null : `default ${usual}`].filter(Boolean);
  return h("tr", {}, h("th", { scope: "row" }, h("code", {}, one.name)), h("td", {}, text + range),
    h("td", {}, [one.description, said.length ? `(${said.join(", ")})` : ""].filter(Boolean).join(" ")));
}

// What an answer looks like: the names of its fields, and for each the kind of its value.
function example(described, schema) {
  if (schema.$ref) return example(described, described.components.schemas[schema.$ref.split("/").pop()]);
  if (schema.anyOf) return example(described, schema.anyOf[0]);
  if (schema.type === "object") return Object.fromEntries(Object.entries(schema.properties ?? {}).map(([name, inner]) => [name, example(described, inner)]));
  if (schema.type === "array") return [example(described, schema.items)];
  return schema.const ?? schema.enum?.[0] ?? schema.type;
}

show();
