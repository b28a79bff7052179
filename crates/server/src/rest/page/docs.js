// Shows /openapi.json and tries its operations. Text from the document or from an answer is only ever set as
// text, never as markup. The token lives in the input field and nowhere else.
"use strict";

const METHODS = ["get", "head", "post", "put", "delete"];
const byId = (id) => document.getElementById(id);
let spec = {};

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== undefined && child !== null));
  return node;
}

function resolve(schema) {
  let found = schema || {};
  while (found.$ref) {
    found = found.$ref.slice(2).split("/").reduce((at, key) => (at || {})[key], spec) || {};
  }
  return found;
}

// A schema in a few lines: names, types and what they mean.
function outline(schema, indent = "", seen = []) {
  if (schema && schema.$ref && seen.includes(schema.$ref)) return "…";
  const inner = schema && schema.$ref ? [...seen, schema.$ref] : seen;
  const found = resolve(schema);
  const parts = found.allOf || found.oneOf || found.anyOf;
  if (found.allOf) return parts.map((part) => outline(part, indent, inner)).join("\n");
  if (parts) return parts.map((part) => outline(part, indent, inner)).join(" | ");
  const type = [].concat(found.type || (found.properties ? "object" : "any"));
  if (type.includes("array")) return "[ " + outline(found.items, indent + "  ", inner) + " ]";
  if (!found.properties) {
    if (found.additionalProperties) return "{ …: " + outline(found.additionalProperties, indent + "  ", inner) + " }";
    return type.join(" | ") + (found.default !== undefined ? " = " + JSON.stringify(found.default) : "");
  }
  const required = found.required || [];
  const lines = Object.entries(found.properties).map(([name, property]) => {
    const text = resolve(property).description;
    const mark = required.includes(name) ? "" : "?";
    const note = text ? "   — " + text.replace(/\s+/g, " ") : "";
    return indent + "  " + name + mark + ": " + outline(property, indent + "  ", inner) + note;
  });
  return "{\n" + lines.join("\n") + "\n" + indent + "}";
}

function exampleOf(content) {
  const media = Object.values(content || {})[0] || {};
  if (media.example !== undefined) return media.example;
  const first = Object.values(media.examples || {})[0];
  return first ? first.value : undefined;
}

const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

function parameterTable(parameters, inputs) {
  const rows = parameters.map((parameter) => {
    const input = make("input", {
      placeholder: parameter.example === undefined ? "" : String(parameter.example),
      "aria-label": parameter.name,
    });
    if (parameter.in === "path" && parameter.example !== undefined) input.value = parameter.example;
    inputs.push([parameter, input]);
    return make("tr", {},
      make("td", {}, make("code", {}, parameter.name), parameter.required ? " *" : ""),
      make("td", {}, parameter.in),
      make("td", {}, parameter.description || ""),
      make("td", {}, input));
  });
  const head = ["Name", "In", "Meaning", "Value"].map((text) => make("th", {}, text));
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}

function requestFor(path, method, inputs, body) {
  const headers = new Headers();
  const query = new URLSearchParams();
  let target = path;
  for (const [parameter, input] of inputs) {
    if (input.value === "" && parameter.in !== "path") continue;
    if (parameter.in === "path") {
      // A path of the box keeps its slashes.
      const encoded = parameter.name === "path"
        ? input.value.replace(/^\/+/, "").split("/").map(encodeURIComponent).join("/")
        : encodeURIComponent(input.value);
      target = target.replace("{" + parameter.name + "}", encoded);
    } else if (parameter.in === "query") query.append(parameter.name, input.value);
    else if (parameter.in === "header") headers.set(parameter.name, input.value);
  }
  const token = byId("token").value;
  if (token) headers.set("Authorization", "Bearer " + token);
  if (body && body.kind) headers.set("Content-Type", body.kind);
  if (body && body.stream && body.stream.checked) headers.set("Accept", "text/event-stream");
  const text = String(query);
  return [target + (text ? "?" + text : ""), {
    method: method.toUpperCase(),
    headers,
    body: body && body.area && body.area.value !== "" ? body.area.value : undefined,
  }];
}

const MAX_SHOWN = 200000;

async function send(url, options, shown, control) {
  shown.textContent = "…";
  try {
    const answer = await fetch(url, { ...options, signal: control.signal });
    shown.textContent = answer.status + " " + answer.statusText + "\n";
    if (!answer.body) return;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      text += value;
      shown.textContent = answer.status + "\n" + text.slice(0, MAX_SHOWN);
      if (text.length > MAX_SHOWN) {
        await reader.cancel();
        shown.textContent += "\n… cut here";
        return;
      }
    }
    try {
      shown.textContent = answer.status + "\n" + JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      // Not JSON: shown as it came.
    }
  } catch (error) {
    shown.textContent += "\n" + error;
  }
}

function operationView(path, method, operation) {
  const inputs = [];
  const body = {};
  const view = make("div", { class: "body" });
  if (operation.description) view.append(make("p", {}, operation.description));
  const parameters = (operation.parameters || []).map(resolve);
  if (parameters.length) view.append(make("h4", {}, "Parameters"), parameterTable(parameters, inputs));
  const request = resolve(operation.requestBody);
  if (request.content) {
    const [kind, media] = Object.entries(request.content)[0];
    body.kind = kind;
    body.area = make("textarea", { spellcheck: "false", "aria-label": "Body" });
    const example = exampleOf(request.content);
    if (example !== undefined) body.area.value = asText(example);
    view.append(make("h4", {}, "Body ", make("small", {}, kind)), make("pre", {}, outline(media.schema)), body.area);
  }
  const streams = Object.values(operation.responses || {}).some((one) => (resolve(one).content || {})["text/event-stream"]);
  if (streams) {
    body.stream = make("input", { type: "checkbox" });
    view.append(make("p", {}, make("label", {}, body.stream, " as events")));
  }
  const shown = make("pre", { "aria-live": "polite" }, "");
  let control = new AbortController();
  const button = make("button", {
    onclick: () => {
      control.abort();
      control = new AbortController();
      const [url, options] = requestFor(path, method, inputs, body);
      send(url, options, shown, control);
    },
  }, "Try it");
  const stop = make("button", { onclick: () => control.abort() }, "Stop");
  view.append(make("p", {}, button, " ", stop), shown, make("h4", {}, "Answers"));
  for (const [status, reference] of Object.entries(operation.responses || {})) {
    const response = resolve(reference);
    view.append(make("p", {}, make("span", { class: "status" }, status), " ", response.description || ""));
    for (const [kind, media] of Object.entries(response.content || {})) {
      const example = exampleOf({ [kind]: media });
      const details = make("details", {}, make("summary", {}, kind));
      details.append(make("pre", {}, outline(media.schema)));
      if (example !== undefined) details.append(make("pre", {}, asText(example)));
      view.append(details);
    }
  }
  return view;
}

function listed(path, method, operation) {
  const details = make("details", { id: operation.operationId + "-" + method },
    make("summary", {},
      make("span", { class: "method " + method }, method.toUpperCase()),
      make("span", { class: "path" }, path),
      make("span", { class: "summary" }, operation.summary || "")));
  details.dataset.text = (method + " " + path + " " + (operation.summary || "")).toLowerCase();
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(operationView(path, method, operation));
  });
  return details;
}

function show() {
  byId("version").textContent = spec.info.version;
  byId("about").textContent = spec.info.description || "";
  const main = byId("operations");
  main.replaceChildren();
  for (const tag of spec.tags || []) {
    byId("tags").append(make("a", { href: "#tag-" + tag.name }, tag.name));
    main.append(make("h2", { id: "tag-" + tag.name }, tag.name), make("p", {}, tag.description || ""));
    for (const [path, item] of Object.entries(spec.paths)) {
      for (const method of METHODS) {
        if (item[method] && (item[method].tags || []).includes(tag.name)) main.append(listed(path, method, item[method]));
      }
    }
  }
}

byId("filter").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  for (const details of document.querySelectorAll("main > details")) {
    details.classList.toggle("hidden", !details.dataset.text.includes(wanted));
  }
});

fetch("/openapi.json")
  .then((answer) => answer.json())
  .then((found) => {
    spec = found;
    show();
  })
  .catch((error) => {
    byId("operations").textContent = "The document could not be loaded: " + error;
  });
