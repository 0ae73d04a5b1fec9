// Fills in what a page leaves open: {{ name }} becomes a value of the configuration, or one of the request.
//
// config: { values: { site: "Berlin" } }
export function onRequest(request, context) {
  context.state.values = { caller: context.source.service, path: request.path, ...context.config.values };
  request.headers.delete("accept-encoding");
}

export function onResponse(response) {
  if (!(response.headers.get("content-type") ?? "").startsWith("text/html")) response.skipBody();
}

export function onResponseBody(body, response, context) {
  return body.text().replace(/\{\{ *(\w+) *\}\}/g, (whole, name) => escaped(context.state.values[name] ?? whole));
}

function escaped(value) {
  return String(value).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}
