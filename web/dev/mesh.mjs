/**
 * A mesh that never was: services, calls between them, and what goes wrong with some. It answers for any moment of the
 * last 15 minutes, and what it answers is a function of the time.
 */
import { swing } from "./noise.mjs";

const RANK = { idle: 0, ok: 1, warning: 2, error: 3 };
const worst = (a, b) => (RANK[a] >= RANK[b] ? a : b);
const POLICY = new Set(["denied", "egress_denied", "plaintext_refused", "external_denied", "unauthenticated"]);

export class Mesh {
  /** `began` is where the history begins. */
  constructor({ facts, nodes, calls, marks = [], topK = Number.POSITIVE_INFINITY, began }) {
    this.facts = facts;
    this.nodes = new Map(nodes.map((node) => [node.id, node]));
    this.calls = new Map(calls.map((call) => [`${call.source}>${call.destination}`, call]));
    this.marks = marks;
    this.topK = topK;
    this.began = began;
    this.listeners = new Set();
  }

  /** What is wrong with a call at a time: the last trouble that had begun and not ended. */
  trouble(call, t) {
    return (call.troubles ?? []).findLast((x) => x.since <= t && (x.until ?? Number.POSITIVE_INFINITY) > t) ?? {};
  }

  /** Begins or ends a trouble now, with a mark that says why. */
  change(id, trouble, mark) {
    const now = Date.now() / 1000;
    const call = this.calls.get(id);
    for (const old of call.troubles ?? []) if (old.until === undefined) old.until = now;
    if (trouble) call.troubles = [...(call.troubles ?? []), { ...trouble, since: now }];
    this.mark({ at: now, kind: "object", verb: "changed", who: "root", ...mark });
  }

  mark(mark) {
    this.marks.push(mark);
    for (const listener of this.listeners) listener(mark);
  }

  edge(id, t) {
    const call = this.calls.get(id);
    const now = { ...call, ...this.trouble(call, t) };
    const rate = now.rate * swing(id, t);
    const bad = rate * (now.share ?? 0);
    const isDenied = POLICY.has(now.reason);
    const failing = now.share ?? 0;
    const slow = now.p99 > 500;
    return {
      id,
      source: call.source,
      destination: call.destination,
      protocol: now.protocol ?? "http",
      rate: round(rate),
      success: rate > 0 && now.protocol !== "tcp" ? round(1 - failing, 4) : null,
      p50: rate > 0 && now.p50 ? round(now.p50 * swing(`${id}50`, t), 2) : null,
      p99: rate > 0 && now.p99 ? round(now.p99 * swing(`${id}99`, t), 2) : null,
      mtls: now.mtls ?? "all",
      denied: isDenied ? round(bad) : 0,
      failed: isDenied ? 0 : round(bad),
      reasons: now.reason && bad > 0 ? [{ code: now.reason, rate: round(bad) }] : [],
      bytesIn: now.protocol === "tcp" ? Math.round(rate * 2100) : 0,
      bytesOut: now.protocol === "tcp" ? Math.round(rate * 48_000) : 0,
      health: rate === 0 ? "idle" : failing > 0.05 ? "error" : failing > 0 || slow ? "warning" : "ok",
    };
  }

  graph(at, window = 60) {
    const all = [...this.calls.keys()].map((id) => this.edge(id, at)).sort((a, b) => b.rate - a.rate);
    const edges = all.slice(0, this.topK);
    const beyond = all.slice(this.topK);
    const health = new Map();
    for (const edge of edges) {
      const serves = edge.health === "idle" ? "ok" : edge.health;
      health.set(edge.destination, worst(health.get(edge.destination) ?? "idle", serves));
      if (!health.has(edge.source)) health.set(edge.source, "ok");
    }
    const nodes = [...this.nodes.values()].map((node) => ({
      ...node,
      health: worst(node.health ?? "idle", health.get(node.id) ?? "idle"),
    }));
    const proxies = nodes.reduce((sum, node) => sum + node.proxies, 0);
    return {
      at,
      window,
      revision: 0,
      nodes,
      edges: edges.sort((a, b) => a.id.localeCompare(b.id)),
      rest: beyond.length ? { edges: beyond.length, rate: round(beyond.reduce((s, e) => s + e.rate, 0)) } : null,
      coverage: { proxies, reporting: proxies - (this.silent ?? 0), since: this.began },
    };
  }

  series(ids, now, window = 900, step = 5) {
    const from = now - window;
    const out = { from, step, rate: [], failed: [], denied: [], p50: [], p99: [] };
    for (let t = from; t < now; t += step) {
      const edges = t < this.began ? [] : ids.map((id) => this.edge(id, t));
      const sum = (name) => round(edges.reduce((s, e) => s + e[name], 0));
      const max = (name) => (edges.length ? Math.max(...edges.map((e) => e[name] ?? 0)) || null : null);
      for (const name of ["rate", "failed", "denied"]) out[name].push(sum(name));
      for (const name of ["p50", "p99"]) out[name].push(max(name));
    }
    return out;
  }

  compare(before, after) {
    const differs = (a, b) =>
      Math.abs((a.success ?? 1) - (b.success ?? 1)) > 0.01 || Math.abs(a.p99 - b.p99) > 0.5 * Math.min(a.p99, b.p99);
    const pairs = [...this.calls.keys()].map((id) => ({
      id,
      before: this.edge(id, before),
      after: this.edge(id, after),
    }));
    return { edges: pairs.filter((pair) => differs(pair.before, pair.after)) };
  }
}

export function round(value, digits = 3) {
  return Math.round(value * 10 ** digits) / 10 ** digits;
}
