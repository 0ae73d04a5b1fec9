/** A cluster of many services in namespaces, with three calls of each. */
import { Mesh } from "./mesh.mjs";
import { chance } from "./noise.mjs";

const NAMESPACES = [
  "shop",
  "payments",
  "search",
  "catalog",
  "identity",
  "shipping",
  "billing",
  "media",
  "ads",
  "reports",
  "mobile",
  "partners",
  "support",
  "inventory",
  "pricing",
  "reviews",
  "mail",
  "fraud",
  "geo",
  "platform",
];
const WORDS = [
  "api",
  "worker",
  "store",
  "index",
  "cache",
  "gateway",
  "sync",
  "rules",
  "feed",
  "events",
  "auth",
  "export",
];

export function large({ services = 1000 } = {}) {
  const now = Date.now() / 1000;
  const nodes = [
    {
      id: "gateway/edge.platform",
      kind: "gateway",
      name: "edge",
      namespace: "platform",
      hosts: ["node-1"],
      proxies: 2,
      endpoints: 2,
      ready: 2,
      findings: 0,
      identities: [],
    },
  ];
  for (let i = 0; i < services; i += 1) {
    const namespace = NAMESPACES[i % NAMESPACES.length];
    const turn = Math.floor(i / NAMESPACES.length);
    const name = `${WORDS[turn % WORDS.length]}${turn >= WORDS.length ? `-${Math.floor(turn / WORDS.length)}` : ""}`;
    const broken = chance("broken", i) < 0.004;
    nodes.push({
      id: `service/${name}.${namespace}`,
      kind: "service",
      name,
      namespace,
      hosts: [`node-${1 + (i % 12)}`],
      proxies: 1,
      endpoints: 2,
      ready: broken ? 0 : 2,
      findings: broken ? 1 : 0,
      health: broken ? "error" : "idle",
      identities: [`spiffe://cluster.local/ns/${namespace}/sa/${name}`],
    });
  }
  const calls = new Map();
  for (let i = 1; i < nodes.length; i += 1) {
    for (let j = 0; j < 3; j += 1) {
      // Most calls stay in the namespace, and most lead on to a service that comes later.
      const within = chance("within", i * 3 + j) < 0.75;
      const step = 1 + Math.floor(chance("step", i * 3 + j) * 12);
      const beyond = [1, 2, 7][Math.floor(chance("beyond", i * 3 + j) * 3 * chance("far", i % NAMESPACES.length))];
      const target = nodes[1 + ((i - 1 + (within ? step * NAMESPACES.length : beyond)) % services)];
      const source = chance("edge", i) < 0.02 && j === 0 ? nodes[0] : nodes[i];
      if (source === target) continue;
      const luck = chance("luck", i * 3 + j);
      const trouble =
        luck < 0.006 ? { reason: "denied", share: 1 } : luck < 0.012 ? { reason: "connect_failed", share: 0.2 } : null;
      calls.set(`${source.id}>${target.id}`, {
        source: source.id,
        destination: target.id,
        rate: chance("idle", i * 3 + j) < 0.08 ? 0 : 0.2 + 40 * chance("rate", i * 3 + j) ** 3,
        p50: 1 + 9 * chance("p50", i),
        p99: 10 + 90 * chance("p99", i * 3 + j),
        troubles: trouble ? [{ since: 0, ...trouble }] : [],
      });
    }
  }
  const facts = {
    name: "production",
    trustDomain: "cluster.local",
    version: "0.1.0",
    platform: "cluster",
    where: "cluster eu-1",
  };
  const mesh = new Mesh({ facts, nodes, calls: [...calls.values()], marks: [], topK: 2000, began: now - 900 });
  mesh.silent = 14;
  mesh.objects = [];
  mesh.findings = () => [];
  return mesh;
}
