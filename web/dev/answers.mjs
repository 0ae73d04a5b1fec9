/** What the fixture server answers about one service, proxy, object or call. */
import { reasons } from "../build.mjs";
import { round } from "./mesh.mjs";
import { chance, swing } from "./noise.mjs";

const REASONS = reasons();
const STATUS = { denied: 403, no_endpoint: 503, tls_failed: 502, circuit_open: 503, connect_failed: 503 };
const PATHS = {
  "service/gateway>service/ratings": [
    "/ratings/2099a055-1e21-46ef-825e-9e0de93554ea",
    "/ratings/0b1d6c1e-7a55-4a3f-9c61-6a9b8a3b1d20",
  ],
};

const bare = (id) => id.replace(/^[a-z]+\/(host:)?/, "");
const spiffe = (mesh, id) => mesh.nodes.get(id)?.identities[0] ?? "";

export function whyOf(mesh, fromId, toId, at = Date.now() / 1000) {
  const [from, to] = [bare(fromId), bare(toId)];
  const find = (name) => [...mesh.nodes.values()].find((n) => n.id === name || bare(n.id) === name);
  const [a, b] = [find(from), find(to)];
  if (!a || !b) return null;
  const call = mesh.calls.get(`${a.id}>${b.id}`);
  const trouble = call ? mesh.trouble(call, at) : {};
  const denied = !call || trouble.reason === "denied";
  const port = 8101;
  return {
    allowed: !denied,
    sourceIdentity: spiffe(mesh, a.id),
    destinationIdentities: b.identities,
    route: a.kind === "gateway" ? "HTTPRoute/bookinfo" : "",
    rule: a.kind === "gateway" ? "rule 2: path prefix /ratings" : "",
    policy: denied ? "" : `TrafficTarget/${to}`,
    reason: denied ? "no policy allows it: denied with 403" : `TrafficTarget/${to} allows ${from}`,
    endpoints: b.ready ? [`127.0.3.${10 + b.name.length}:${port}`] : [],
    mtls: "strict",
    considered: [
      { kind: "TrafficTarget", name: to, outcome: denied ? "does not match: source not listed" : "allows" },
      ...(to === "productpage"
        ? [{ kind: "AuthorizationPolicy", name: "no-admin", outcome: "does not match: path" }]
        : []),
    ],
    filters: [],
    split: to === "reviews" ? ["reviews:8102 90%", "reviews-v3:8102 10%"] : [],
    limits: to === "stock" ? ["TrafficPolicy/stock: the circuit opens when half of at least 20 requests fail"] : [],
    timeout: to === "details" ? "15s" : "",
    retry: to === "reviews" ? "2 attempts on connect_failed, 503" : "",
    destinations: [`${to}:${port}`],
    conflicts: [],
  };
}

export function edgePage(mesh, id, now, window) {
  const edge = mesh.edge(id, now);
  const code = edge.reasons[0]?.code;
  const text = code && REASONS[code];
  const paths = PATHS[id] ?? ["/api/items/17", "/health"];
  const errors = (code ? paths : []).map((path, i) => ({
    at: now - 3 - 21 * i,
    reason: code,
    status: STATUS[code] ?? 500,
    grpcStatus: null,
    method: "GET",
    path,
    count: Math.max(1, Math.round((edge.denied + edge.failed) * 60 * (1 - i * 0.6))),
    proxy: spiffe(mesh, code === "denied" ? edge.destination : edge.source),
    upstream: code === "denied" || code === "no_endpoint" ? "" : "127.0.3.15:8103",
    cause: text.cause,
    fix: text.fix,
    doc: "docs/reasons.md#reason-codes",
  }));
  const between =
    mesh.nodes.get(edge.source)?.kind !== "outside" && mesh.nodes.get(edge.destination)?.kind !== "external";
  const why = between ? whyOf(mesh, bare(edge.source), bare(edge.destination)) : null;
  return { edge, series: mesh.series([id], now, window), errors, why };
}

export function serviceRow(mesh, node, now) {
  const edges = [...mesh.calls.values()]
    .filter((c) => c.destination === node.id)
    .map((c) => mesh.edge(`${c.source}>${c.destination}`, now));
  const rate = edges.reduce((sum, e) => sum + e.rate, 0);
  const judged = edges.filter((e) => e.success !== null);
  const graph = mesh.healths ?? new Map(mesh.graph(now).nodes.map((n) => [n.id, n.health]));
  return {
    name: bare(node.id),
    namespace: node.namespace,
    kind: node.kind,
    ports:
      node.kind === "gateway"
        ? [
            { port: 8080, protocol: "http" },
            { port: 8443, protocol: "https" },
          ]
        : [{ port: 8100 + node.name.length, protocol: node.name.endsWith("db") ? "tcp" : "http" }],
    endpoints: node.endpoints,
    ready: node.ready,
    rate: round(rate),
    success: judged.length ? round(judged.reduce((sum, e) => sum + e.success * e.rate, 0) / (rate || 1), 4) : null,
    p50: max(edges, "p50"),
    p99: max(edges, "p99"),
    health: graph.get(node.id),
    findings: node.findings,
  };
}

const max = (edges, name) => (edges.length ? Math.max(...edges.map((e) => e[name] ?? 0)) || null : null);

export const servers = (mesh) => [...mesh.nodes.values()].filter((n) => n.kind === "service" || n.kind === "gateway");

export function servicePage(mesh, name, now) {
  const node = servers(mesh).find((n) => n.id === name || bare(n.id) === name);
  if (!node) return null;
  const ids = [...mesh.calls.keys()];
  const inbound = ids.filter((id) => id.endsWith(`>${node.id}`));
  const outbound = ids.filter((id) => id.startsWith(`${node.id}>`));
  return {
    row: serviceRow(mesh, node, now),
    endpoints: Array.from({ length: node.endpoints }, (_, i) => ({
      address: `127.0.3.${11 + i + node.name.length}:${8100 + node.name.length}`,
      workload: node.endpoints > 1 ? `${node.name}-${i + 1}` : node.name,
      host: node.hosts[i % node.hosts.length] ?? "",
      ready: i < node.ready,
      leftOutBy: mesh.faults === true && node.name === "stock" ? 2 : 0,
      health: i < node.ready ? "ok" : "error",
    })),
    series: mesh.series(inbound, now),
    inbound: inbound.map((id) => mesh.edge(id, now)),
    outbound: outbound.map((id) => mesh.edge(id, now)),
    objects: objectRefs(mesh).filter((o) => o.name === node.name),
    identities: node.identities,
    findings: mesh.findings().filter((f) => f.object?.name === node.name),
    proxies: proxyRows(mesh, now).filter((p) => p.name === node.name),
  };
}

export function objectRefs(mesh) {
  return mesh.objects.map(({ kind, name, namespace }) => {
    const mark = mesh.marks.findLast((m) => m.what === `${kind} ${name}`);
    const refused = kind === "TrafficSplit";
    return {
      kind,
      name,
      namespace,
      status: refused ? "refused" : "accepted",
      message: refused ? "backend reviews-v3 is not a service" : "",
      changedAt: mark ? Math.round(mark.at) : null,
    };
  });
}

export function objectPage(mesh, kind, name) {
  const found = mesh.objects.find((o) => o.kind === kind && o.name === name);
  if (!found) return null;
  return {
    ref: objectRefs(mesh).find((o) => o.kind === kind && o.name === name),
    yaml: found.yaml,
    acts: servers(mesh)
      .filter((n) => new RegExp(`name: ${n.name}$|service: ${n.name}$|value: ${n.name}$`, "m").test(found.yaml))
      .map((n) => ({ on: n.id })),
    findings: mesh.findings().filter((f) => f.object?.kind === kind && f.object.name === name),
  };
}

export function proxyRows(mesh, now) {
  return servers(mesh).flatMap((node) =>
    Array.from({ length: node.proxies }, (_, i) => {
      const id = `${node.identities[0]}#${Math.floor(chance(node.id, i) * 1e6).toString(16)}`;
      const rate = [...mesh.calls.keys()]
        .filter((c) => c.includes(node.id))
        .reduce((sum, c) => sum + mesh.edge(c, now).rate, 0);
      const refused = mesh.faults && node.name === "gateway";
      return {
        id,
        spiffeId: node.identities[0],
        name: node.name,
        kind: node.kind === "gateway" ? "gateway" : "sidecar",
        host: node.hosts[i % node.hosts.length] ?? "",
        version: "0.1.0",
        startedAt: now - 5400 - 900 * chance(id),
        cpu: round(0.002 + (rate / node.proxies) * 0.0009, 4),
        memory: Math.round((4.6 + 2 * chance(id, 3)) * 1024 * 1024),
        connections: 3 + Math.round(9 * chance(id, 4)),
        requestsRate: round(rate / node.proxies),
        subscriptions: 3 + Math.round(4 * chance(id, 5)),
        sent: 41,
        acked: refused ? 39 : 41,
        lastError: refused ? "route HTTPRoute/bookinfo: rule 3: regular expression “(unclosed”: missing )" : "",
        faults: mesh.faults && node.name === "ingress" ? "listener https: the certificate expired 3 h ago" : "",
        certificateNotAfter: Math.round(
          mesh.faults && node.name === "archive" ? now - 1460 : now + 3600 * (3 + 18 * chance(id, 6)),
        ),
        reporting: true,
        logLevel: "info",
      };
    }),
  );
}

export function proxyPage(mesh, id, now) {
  const row = proxyRows(mesh, now).find((p) => p.id === id);
  if (!row) return null;
  const series = (value, name) => ({
    from: now - 900,
    step: 5,
    values: Array.from({ length: 180 }, (_, i) =>
      now - 900 + i * 5 < mesh.began ? null : round(value * swing(id + name, now - 900 + i * 5), 5),
    ),
  });
  return {
    row,
    cpuSeries: series(row.cpu, "cpu"),
    memorySeries: series(row.memory, "memory"),
    certificates: certificates(mesh, now).certificates.filter((c) => c.subject === row.spiffeId),
  };
}

export function certificates(mesh, now) {
  const rows = proxyRows(mesh, now).map((p) => ({
    subject: p.spiffeId,
    of: p.kind === "gateway" ? "gateway" : "proxy",
    notAfter: p.certificateNotAfter,
    left: p.certificateNotAfter - Math.round(now),
    state: p.certificateNotAfter < now ? "expired" : p.certificateNotAfter < now + 6 * 3600 ? "due" : "ok",
    where: `${p.name} on ${p.host}`,
  }));
  if (mesh.faults)
    rows.push({
      subject: "shop.example.com",
      of: "gateway",
      notAfter: Math.round(now - 10_800),
      left: -10_800,
      state: "expired",
      where: "Gateway/ingress listener https",
    });
  const sha256 = "9f2c41d7be0a5c3388ab17c6e2d94f7011f0b3a9c8d1e6f2a4b5c6d7e8f90123";
  const notAfter = Math.round(now + 86_400 * 340);
  rows.push({ subject: sha256, of: "root", notAfter, left: 86_400 * 340, state: "ok", where: "trust bundle" });
  return {
    authority: { step: "steady", issuer: "", roots: [{ sha256, role: "signing", notAfter }] },
    certificates: rows.sort((a, b) => a.notAfter - b.notAfter),
  };
}

export function proxyConfig(mesh, id, now) {
  const row = proxyRows(mesh, now).find((p) => p.id === id);
  if (!row) return null;
  const called = [...mesh.calls.values()].filter(
    (c) => c.source === `service/${row.name}` || c.source === `gateway/${row.name}`,
  );
  return {
    config: {
      identity: row.spiffeId,
      version: row.acked,
      inbound: {
        ports: [{ port: 8100 + row.name.length, protocol: "http" }],
        policies: [
          {
            name: `TrafficTarget/${row.name}`,
            sources: ["gateway", "reviews"].map((n) => `spiffe://tulle.local/svc/${n}`),
          },
        ],
      },
      outbound: called.map((c) => ({
        name: bare(c.destination),
        port: 8101,
        endpoints: [{ address: "127.0.3.17:8101", ready: true }],
        timeouts: { connect: "2s", request: "15s" },
      })),
      trust: { roots: 1 },
    },
  };
}

export function proxyEndpoints(mesh, id, now) {
  const row = proxyRows(mesh, now).find((p) => p.id === id);
  if (!row) return null;
  const called = [...mesh.calls.values()].filter(
    (c) => c.source === `service/${row.name}` || c.source === `gateway/${row.name}`,
  );
  const services = called.map((c) => {
    const node = mesh.nodes.get(c.destination);
    const broken = mesh.faults && node.name === "stock";
    return {
      name: bare(c.destination),
      port: 8100 + node.name.length,
      endpoints: Array.from({ length: node.endpoints }, (_, i) => ({
        address: `127.0.3.${11 + i + node.name.length}:${8100 + node.name.length}`,
        healthy: i < node.ready && !broken,
        ejected: broken === true,
        state: broken ? "ejected" : i < node.ready ? "ready" : "failing",
        active: Math.round(c.rate / 6),
        latencyMs: c.p50,
      })),
    };
  });
  return { services };
}

/** A line of the access log for one request of a call. */
export function tapLine(mesh, id, n, now) {
  const edge = mesh.edge(id, now);
  const bad = edge.reasons[0] && chance(id, n) < (edge.denied + edge.failed) / Math.max(edge.rate, 0.001);
  const code = bad ? edge.reasons[0].code : "-";
  return {
    start_time: new Date(now * 1000).toISOString(),
    method: chance(id, n + 1) < 0.85 ? "GET" : "POST",
    path: PATHS[id]?.[0] ?? `/api/${bare(edge.destination).split(".")[0]}/${Math.floor(chance(id, n) * 900)}`,
    authority: bare(edge.destination),
    protocol: edge.protocol === "grpc" ? "HTTP/2" : "HTTP/1.1",
    response_code: bad ? (STATUS[code] ?? 500) : 200,
    response_flags: code,
    duration: round((edge.p50 ?? 1) * (0.6 + 1.8 * chance(id, n + 2)), 2),
    time_to_first_byte: round((edge.p50 ?? 1) * 0.9, 2),
    upstream_cluster: bare(edge.destination),
    upstream_host: bad ? "-" : "127.0.3.17:8101",
    bytes_received: 0,
    bytes_sent: Math.round(200 + 3000 * chance(id, n + 3)),
    request_id: `${Math.floor(chance(id, n) * 1e9).toString(16)}-4f1e`,
    source_principal: spiffe(mesh, edge.source) || "-",
    destination_principal: spiffe(mesh, edge.destination) || "-",
    connection_security_policy: edge.mtls === "all" ? "mutual_tls" : "none",
    proxy: spiffe(mesh, edge.source) || spiffe(mesh, edge.destination),
  };
}
