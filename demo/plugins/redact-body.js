// Hides values in JSON that goes back: those of the named fields, at any depth. What is no JSON is left alone; what calls itself JSON and is
// none is not sent on, because nobody has looked at it.
//
// config: { fields: ["cardNumber", "iban"] }
export function onRequest(request) {
  // What the application compresses cannot be read here.
  request.headers.delete("accept-encoding");
}

export function onResponse(response) {
  if (!/^application\/([\w.+-]*\+)?json\b/.test(response.headers.get("content-type") ?? "")) response.skipBody();
}

export function onResponseBody(body, response, context) {
  const hidden = new Set(context.config.fields);
  return JSON.stringify(body.json(), (name, value) => (hidden.has(name) ? "***" : value));
}
