// So many requests a window for each tenant. Each worker of a sidecar counts for itself; for a limit of the whole sidecar there is RateLimit.
//
// config: { header: "x-tenant", seconds: 60, limits: { gold: 1000 }, others: 10 }
export function onRequest(request, context) {
  const { header, seconds, limits, others } = context.config;
  const tenant = request.headers.get(header);
  if (!tenant) return Response.json({ error: `${header} is required` }, { status: 400 });
  const limit = limits[tenant] ?? others;
  const used = store.add(tenant, 1, { ttl: seconds });
  context.state.left = Math.max(0, limit - used);
  context.tag("tenant", tenant);
  if (used > limit) {
    metrics.count("limited");
    return Response.json({ error: "too many requests" }, { status: 429, headers: { "retry-after": seconds } });
  }
}

export function onResponse(response, context) {
  response.headers.set("x-ratelimit-remaining", context.state.left);
}
