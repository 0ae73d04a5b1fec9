// Asks an identity provider whether a token is active (RFC 7662), and remembers the answer for a while. A provider that cannot be reached
// lets nobody in.
//
// config: { endpoint: "tokens:8080/introspect", seconds: 30 }; services: [tokens]
export async function onRequest(request, context) {
  const [scheme, token] = (request.headers.get("authorization") ?? "").split(" ");
  if (scheme.toLowerCase() !== "bearer" || !token) return refused("a bearer token is required");
  const answer = store.get(token) ?? (await introspect(token, context.config));
  if (!answer.active) return refused("the token is not active");
  request.headers.set("x-user", answer.sub ?? "");
  request.headers.delete("authorization");
}

async function introspect(token, { endpoint, seconds }) {
  const response = await mesh.fetch(endpoint, {
    method: "POST",
    headers: { "content-type": "application/x-www-form-urlencoded" },
    body: `token=${encodeURIComponent(token)}`,
  });
  if (!response.ok) throw new Error(`${endpoint} answers ${response.status}`);
  const answer = await response.json();
  metrics.count("introspections");
  store.set(token, answer, { ttl: seconds });
  return answer;
}

function refused(why) {
  return Response.json({ error: why }, { status: 401, headers: { "www-authenticate": "Bearer" } });
}
