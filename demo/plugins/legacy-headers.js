// Maps headers between an old application and everybody else: both ways, by name, and values by a table.
//
// config: { request: { "x-tenant": "X_CLIENT" }, response: { "x-status-text": "x-status" }, values: { "x-status": { OK: "ready" } } }
export function onRequest(request, context) {
  rename(request.headers, context.config.request, {});
}

export function onResponse(response, context) {
  rename(response.headers, context.config.response, context.config.values);
}

function rename(headers, names, values) {
  for (const [from, to] of Object.entries(names ?? {})) {
    const value = headers.get(from);
    if (value === null) continue;
    headers.delete(from);
    headers.set(to, values?.[to.toLowerCase()]?.[value] ?? value);
  }
}
