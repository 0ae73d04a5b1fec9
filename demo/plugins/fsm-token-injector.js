// FSM's example "token-injector", written anew: the caller's sidecar gives a service a token that its application knows nothing of.
// Attached to a route of the service.
//
// config: { tokens: { "curl": "7d1ec…" } }: service account or service of the caller, and its token
export function onRequest(request, context) {
  const token = context.config.tokens[context.source.service];
  if (token) request.headers.set("authorization", `Basic ${token}`);
}
