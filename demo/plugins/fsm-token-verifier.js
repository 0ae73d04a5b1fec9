// FSM's example "token-verifier", written anew: the service's own sidecar lets in who brings a known token; public paths are open to all.
//
// config: { public: ["^/health"], tokens: ["7d1ec…"] }
export function onRequest(request, context) {
  const [path] = request.path.split("?");
  if (context.config.public.some((pattern) => new RegExp(pattern).test(path))) return;
  const [, token] = (request.headers.get("authorization") ?? "").split(" ");
  if (!context.config.tokens.includes(token)) return new Response("token required\n", { status: 401 });
  request.headers.delete("authorization");
}
