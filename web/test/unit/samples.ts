/** Nodes and edges for tests. */
import type { Edge, MeshNode } from "../../src/api/types.ts";

export function node(id: string, more: Partial<MeshNode> = {}): MeshNode {
  const name = id.replace(/^\w+\//, "").split(".")[0]!;
  return {
    id,
    kind: "service",
    name,
    namespace: null,
    hosts: ["h"],
    proxies: 1,
    endpoints: 1,
    ready: 1,
    findings: 0,
    health: "ok",
    identities: [],
    ...more,
  };
}

export function edge(source: string, destination: string, more: Partial<Edge> = {}): Edge {
  return {
    id: `${source}>${destination}`,
    source,
    destination,
    protocol: "http",
    rate: 1,
    success: 1,
    p50: 1,
    p99: 2,
    mtls: "all",
    denied: 0,
    failed: 0,
    reasons: [],
    bytesIn: 0,
    bytesOut: 0,
    health: "ok",
    ...more,
  };
}
