/** The demo's mesh with six faults: denied, slow, no endpoint, expired certificate, refused configuration, open breaker. */
import { readFileSync } from "node:fs";
import { Mesh } from "./mesh.mjs";

const TRUST = "spiffe://tulle.local";

function service(name, host, more = {}) {
  return {
    id: `service/${name}`,
    kind: "service",
    name,
    namespace: null,
    hosts: [host],
    proxies: 1,
    endpoints: 1,
    ready: 1,
    findings: 0,
    identities: [`${TRUST}/svc/${name}`],
    ...more,
  };
}

const call = (source, destination, rate, p50, p99, more = {}) => ({ source, destination, rate, p50, p99, ...more });
const s = (name) => `service/${name}`;

export const DENIED = "service/gateway>service/ratings";
export const DENY = { reason: "denied", share: 1, p50: 0.3, p99: 0.9 };

export function bookinfo({ denied = true, faults = true } = {}) {
  const now = Date.now() / 1000;
  const since = (seconds, trouble) => (faults ? [{ since: now - seconds, ...trouble }] : []);
  const nodes = [
    {
      ...service("outside", "edge"),
      id: "outside",
      kind: "outside",
      name: "outside",
      hosts: [],
      proxies: 0,
      endpoints: 0,
      ready: 0,
      identities: [],
    },
    { ...service("ingress", "edge"), id: "gateway/ingress", kind: "gateway", endpoints: 0, ready: 0 },
    service("productpage", "node-1", { proxies: 2, endpoints: 2, ready: 2 }),
    service("gateway", "node-1"),
    service("details", "node-1"),
    service("reviews", "node-2", { hosts: ["node-1", "node-2"], proxies: 3, endpoints: 3, ready: faults ? 2 : 3 }),
    service("ratings", "node-2", { findings: denied ? 1 : 0 }),
    service("recommend", "node-2", {
      ready: faults ? 0 : 1,
      findings: faults ? 1 : 0,
      health: faults ? "error" : "idle",
    }),
    service("stock", "node-2"),
    service("checkout", "node-1"),
    service("orders-db", "node-2"),
    service("archive", "node-2"),
    {
      ...service("payments", "", { hosts: [], proxies: 0, endpoints: 0, ready: 0, identities: [] }),
      id: "egress/host:api.payments.example",
      kind: "external",
      name: "api.payments.example",
    },
  ];
  const calls = [
    call("outside", "gateway/ingress", 42, 9, 48, { mtls: "none" }),
    call("gateway/ingress", s("productpage"), 24, 8, 44),
    call("gateway/ingress", s("gateway"), 12, 2, 9),
    call("gateway/ingress", s("ratings"), 5, 0.6, 3.1),
    call("gateway/ingress", s("checkout"), 3.2, 11, 62),
    call(s("productpage"), s("details"), 23, 1.2, 7, { troubles: since(340, { p50: 410, p99: 1870 }) }),
    call(s("productpage"), s("reviews"), 23, 3.4, 21),
    call(s("productpage"), s("stock"), 8, 1.1, 6, { troubles: since(200, { reason: "circuit_open", share: 0.86 }) }),
    call(s("reviews"), s("ratings"), 19, 0.7, 4),
    call(s("reviews"), s("recommend"), 2.1, 2, 9, {
      troubles: since(520, { reason: "no_endpoint", share: 1, p50: 0.2, p99: 0.6 }),
    }),
    call(s("gateway"), s("ratings"), 4.4, 0.7, 3.8, { troubles: denied ? [{ since: now - 410, ...DENY }] : [] }),
    call(s("gateway"), s("reviews"), 4, 3, 19, { protocol: "grpc" }),
    call(s("gateway"), s("details"), 3.5, 1.3, 8),
    call(s("checkout"), s("stock"), 2.4, 1.4, 7),
    call(s("checkout"), s("orders-db"), 3, 0, 0, { protocol: "tcp" }),
    call(s("checkout"), "egress/host:api.payments.example", 1.1, 88, 240, { mtls: "none" }),
    call(s("reviews"), s("archive"), 0.8, 4, 12, {
      troubles: since(260, { reason: "tls_failed", share: 1, p50: 1.1, p99: 2.4 }),
    }),
  ];
  const mark = (seconds, kind, what, verb, who = "") => ({ at: now - seconds, kind, what, verb, who });
  const marks = [
    mark(760, "controller", "controller 0.1.0", "connected"),
    mark(640, "object", "HTTPRoute bookinfo", "changed", "root"),
    ...(faults ? [mark(520, "proxy", "recommend", "gone")] : []),
    ...(denied ? [mark(410, "object", "TrafficTarget ratings", "changed", "root")] : []),
    ...(faults
      ? [mark(340, "object", "Workload details", "changed", "deploy"), mark(150, "proxy", "gateway", "refused")]
      : []),
    mark(96, "object", "TrafficPolicy stock", "created", "root"),
    mark(94, "object", "RateLimit ingress", "created", "root"),
  ];
  const facts = {
    name: "bookinfo",
    trustDomain: "tulle.local",
    version: "0.1.0",
    platform: "host",
    where: "this host",
  };
  const mesh = new Mesh({ facts, nodes, calls, marks, began: now - 800 });
  mesh.faults = faults;
  mesh.objects = objects();
  mesh.findings = () => findings(mesh, faults);
  return mesh;
}

/** Objects as `demo/mesh.yaml` has them, and a few that the other faults need. */
function objects() {
  const demo = readFileSync(new URL("../../demo/mesh.yaml", import.meta.url), "utf8");
  const extra = readFileSync(new URL("./extra.yaml", import.meta.url), "utf8");
  return `${demo}\n---\n${extra}`.split(/^---$/m).map((text) => {
    const yaml = text.replace(/^(#.*\n|\n)+/, "").trimEnd();
    const field = (name) => new RegExp(`^\\s*${name}: (\\S+)`, "m").exec(yaml)?.[1] ?? "";
    return { kind: field("kind"), name: field("name"), namespace: null, yaml: `${yaml}\n` };
  });
}

function findings(mesh, faults) {
  const about = (kind, name) => ({ kind, name, namespace: null });
  const doc = (code) => `docs/findings.md#${code.toLowerCase()}`;
  const list = [];
  const add = (code, severity, object, field, message, fix) =>
    list.push({ code, severity, object, field, message, fix, doc: doc(code) });
  const denied = mesh.trouble(mesh.calls.get(DENIED), Date.now() / 1000).reason === "denied";
  if (faults) {
    add(
      "TL0033",
      "error",
      about("Workload", "recommend"),
      "",
      "no workload of `recommend` is ready",
      "`tulle status` and `tulle logs recommend` say why",
    );
    add(
      "TL0049",
      "error",
      about("Gateway", "ingress"),
      "spec.listeners[1].tls",
      "the certificate of listener `https` expired 3 h ago",
      "replace it",
    );
    add(
      "TL0010",
      "warning",
      about("TrafficSplit", "reviews"),
      "spec.backends[1].service",
      "`reviews-v3` is not a service",
      "correct the name, or add the Workload",
    );
  }
  if (denied) {
    add(
      "TL0050",
      "error",
      about("HTTPRoute", "bookinfo"),
      "spec.rules[1]",
      "no policy lets `gateway` call `ratings`",
      "add an AuthorizationPolicy or TrafficTarget that allows the callers",
    );
  }
  return list;
}
