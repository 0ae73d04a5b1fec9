// A canary by header and by cookie. Attached to a route whose rule has two backends: who asks for the new version gets it, and a browser
// that got it once stays with it.
//
// config: { stable: "reviews-v1", canary: "reviews-v2", header: "x-version", cookie: "version" }
export function onRequest(request, context) {
  const { stable, canary, header, cookie } = context.config;
  const asked = request.headers.get(header) ?? cookieOf(request, cookie);
  context.state.chosen = asked === "canary" ? "canary" : "stable";
  context.backend = asked === "canary" ? canary : stable;
  context.tag("version", context.state.chosen);
}

export function onResponse(response, context) {
  const { cookie } = context.config;
  response.headers.append("set-cookie", `${cookie}=${context.state.chosen}; Path=/; HttpOnly; SameSite=Lax`);
}

function cookieOf(request, name) {
  for (const pair of (request.headers.get("cookie") ?? "").split(/[;,] */)) {
    const [key, value] = pair.split("=");
    if (key === name) return value;
  }
  return null;
}
