// Signs requests with a key that they share with an application which checks it: HMAC-SHA-256 over method, path and body.
//
// config: { id: "gateway", key: "…in base64" }
let key;

export async function onRequest(request, context) {
  // A request without a body has no other hook.
  if (!request.hasBody) await sign(request, "", context);
}

export async function onRequestBody(body, request, context) {
  await sign(request, body.bytes(), context);
}

async function sign(request, body, { config }) {
  const bytes = Uint8Array.from(atob(config.key), (c) => c.charCodeAt(0));
  key ??= await crypto.subtle.importKey("raw", bytes, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  const digest = hex(await crypto.subtle.digest("SHA-256", body));
  const signature = hex(await crypto.subtle.sign("HMAC", key, `${request.method}\n${request.path}\n${digest}`));
  request.headers.set("x-signature", `${config.id}:${signature}`);
}

function hex(buffer) {
  return Array.from(new Uint8Array(buffer), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
