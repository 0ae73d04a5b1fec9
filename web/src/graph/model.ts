/** Decides which nodes and edges of a mesh are drawn: filters, and groups where they would be too many. Pure. */
import type { Edge, Health, MeshNode } from "../api/types.ts";

/** Above so many nodes the graph begins with groups: a layered layout of more takes seconds and nobody can read it. */
export const LIMIT = 150;

export type Grouping = "none" | "namespace" | "host";
export type Show = "all" | "problems" | "denied" | "plaintext";

export interface Options {
  grouping: Grouping;
  expanded: ReadonlySet<string>;
  search: string;
  show: Show;
  hideIdle: boolean;
}

export interface DrawnNode {
  id: string;
  kind: MeshNode["kind"] | "group" | "more";
  name: string;
  /** Id of the group it stands in, where groups are drawn. */
  group: string | null;
  health: Health;
  findings: number;
  node: MeshNode | null;
  /** Members of a group; 1 for a node. */
  count: number;
  troubled: number;
}

export interface DrawnEdge extends Edge {
  /** Ids of the edges that are summed here; one where it is an edge of its own. */
  members: string[];
}

export interface Box {
  id: string;
  name: string;
  members: string[];
}

export interface Drawn {
  nodes: DrawnNode[];
  edges: DrawnEdge[];
  boxes: Box[];
  /** Groups stand for their members as there are too many. */
  collapsed: boolean;
  grouping: Grouping;
  /** Nodes that pass the filter, drawn on their own or in a group. */
  matching: number;
  total: number;
}

const RANK: Record<Health, number> = { error: 3, warning: 2, ok: 1, idle: 0 };

export function worst(a: Health, b: Health): Health {
  return RANK[a] >= RANK[b] ? a : b;
}

/** Stands for the hosts of a service that runs on several. */
export const SEVERAL = "+";
/** The controller's own host, which has no name. */
export const OWN_HOST = ".";

export function groupName(node: MeshNode, grouping: Grouping): string | null {
  if (grouping === "none" || node.kind === "outside" || node.kind === "external") return null;
  if (grouping === "namespace") return node.namespace;
  return node.hosts.length > 1 ? SEVERAL : (node.hosts[0] ?? OWN_HOST);
}

/** The grouping that tells most where there are too many nodes. */
export function bestGrouping(nodes: readonly MeshNode[]): Grouping {
  const namespaces = new Set(nodes.map((n) => n.namespace).filter(Boolean));
  return namespaces.size > 1 ? "namespace" : "host";
}

export function isTroubled(edge: Edge): boolean {
  return edge.health === "error" || edge.health === "warning" || edge.denied > 0;
}

function passes(edge: Edge, show: Show): boolean {
  if (show === "problems") return isTroubled(edge);
  if (show === "denied") return edge.denied > 0;
  if (show === "plaintext") return edge.mtls !== "all" && edge.rate > 0;
  return true;
}

/** Whether each word of the search is in the node's name, namespace, hosts or identities. */
export function found(node: MeshNode, search: string): boolean {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return true;
  const text = [node.id, node.name, node.namespace ?? "", ...node.hosts, ...node.identities].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

/** Nodes and edges that pass the filter. Neighbours of what the search found stay, so that its calls can be seen. */
function filtered(nodes: readonly MeshNode[], edges: readonly Edge[], options: Options) {
  const hits = new Set(nodes.filter((n) => found(n, options.search)).map((n) => n.id));
  const searched = options.search.trim() !== "";
  const kept = edges.filter((e) => passes(e, options.show) && (hits.has(e.source) || hits.has(e.destination)));
  const touched = new Set(kept.flatMap((e) => [e.source, e.destination]));
  const keeps = (n: MeshNode) => {
    if (touched.has(n.id)) return true;
    if (options.show !== "all") return options.show === "problems" && hits.has(n.id) && RANK[n.health] > 1;
    if (!hits.has(n.id)) return false;
    return searched || !options.hideIdle || n.health !== "idle";
  };
  return { nodes: nodes.filter(keeps), edges: kept };
}

/** Sums edges that lead from one drawn node to another. */
export function summed(id: string, source: string, destination: string, edges: readonly Edge[]): DrawnEdge {
  const sum = (value: (e: Edge) => number) => edges.reduce((all, e) => all + value(e), 0);
  const rate = sum((e) => e.rate);
  const judged = edges.filter((e) => e.success !== null);
  const weight = judged.reduce((all, e) => all + e.rate, 0);
  const good = judged.reduce((all, e) => all + e.rate * e.success!, 0);
  const highest = (value: (e: Edge) => number | null) => {
    const known = edges.map(value).filter((v): v is number => v !== null);
    return known.length ? Math.max(...known) : null;
  };
  const secured = new Set(edges.map((e) => e.mtls));
  const reasons = new Map<string, number>();
  for (const edge of edges) for (const r of edge.reasons) reasons.set(r.code, (reasons.get(r.code) ?? 0) + r.rate);
  return {
    id,
    source,
    destination,
    protocol: edges[0]!.protocol,
    rate,
    success: weight > 0 ? good / weight : null,
    p50: highest((e) => e.p50),
    p99: highest((e) => e.p99),
    mtls: secured.size === 1 ? edges[0]!.mtls : "some",
    denied: sum((e) => e.denied),
    failed: sum((e) => e.failed),
    reasons: [...reasons].map(([code, r]) => ({ code, rate: r })).sort((a, b) => b.rate - a.rate),
    bytesIn: sum((e) => e.bytesIn),
    bytesOut: sum((e) => e.bytesOut),
    health: edges.reduce<Health>((all, e) => worst(all, e.health), "idle"),
    members: edges.map((e) => e.id),
  };
}

function single(node: MeshNode, group: string | null): DrawnNode {
  const { id, kind, name, health, findings } = node;
  return { id, kind, name, group, health, findings, node, count: 1, troubled: 0 };
}

/** One member in trouble does not make a group of fifty red: that takes a fifth of them. */
function groupHealth(members: readonly MeshNode[]): Health {
  const overall = members.reduce<Health>((all, n) => worst(all, n.health), "idle");
  const failing = members.filter((n) => n.health === "error").length;
  return overall === "error" && failing < members.length / 5 ? "warning" : overall;
}

function gathered(id: string, kind: "group" | "more", name: string, members: readonly MeshNode[]): DrawnNode {
  return {
    id,
    kind,
    name,
    group: kind === "more" ? id.replace("more/", "group/") : null,
    health: groupHealth(members),
    findings: members.reduce((all, n) => all + n.findings, 0),
    node: null,
    count: members.length,
    troubled: members.filter((n) => RANK[n.health] > 1).length,
  };
}

/** Nodes in trouble first, then those with most traffic. */
function byImportance(edges: readonly Edge[]): (a: MeshNode, b: MeshNode) => number {
  const traffic = new Map<string, number>();
  for (const e of edges) {
    for (const id of [e.source, e.destination]) traffic.set(id, (traffic.get(id) ?? 0) + e.rate);
  }
  const weight = (n: MeshNode) => (RANK[n.health] > 1 ? 1e9 : 0) + (traffic.get(n.id) ?? 0);
  return (a, b) => weight(b) - weight(a) || a.id.localeCompare(b.id);
}

export function draw(nodes: readonly MeshNode[], edges: readonly Edge[], options: Options): Drawn {
  const kept = filtered(nodes, edges, options);
  const collapsed = kept.nodes.length > LIMIT;
  const grouping = collapsed && options.grouping === "none" ? bestGrouping(nodes) : options.grouping;
  const groups = new Map<string, MeshNode[]>();
  const drawn: DrawnNode[] = [];
  /** The drawn node that stands for each node. */
  const stand = new Map<string, string>();
  for (const node of kept.nodes) {
    const name = groupName(node, grouping) ?? (collapsed && node.kind === "service" ? "–" : null);
    if (name === null) {
      drawn.push(single(node, null));
      stand.set(node.id, node.id);
    } else {
      const members = groups.get(name);
      if (members) members.push(node);
      else groups.set(name, [node]);
    }
  }
  const boxes: Box[] = [];
  for (const [name, members] of groups) {
    const id = `group/${name}`;
    if (collapsed && !options.expanded.has(id)) {
      drawn.push(gathered(id, "group", name, members));
      for (const node of members) stand.set(node.id, id);
      continue;
    }
    const shown = collapsed ? members.toSorted(byImportance(kept.edges)).slice(0, LIMIT - 30) : members;
    const rest = collapsed ? members.filter((n) => !shown.includes(n)) : [];
    const inside = shown.map((n) => single(n, id));
    for (const node of shown) stand.set(node.id, node.id);
    if (rest.length) {
      inside.push(gathered(`more/${name}`, "more", name, rest));
      for (const node of rest) stand.set(node.id, `more/${name}`);
    }
    drawn.push(...inside);
    boxes.push({ id, name, members: inside.map((n) => n.id) });
  }
  return {
    nodes: drawn,
    edges: joined(kept.edges, stand),
    boxes,
    collapsed,
    grouping,
    matching: kept.nodes.length,
    total: nodes.length,
  };
}

/** Leads edges to the drawn nodes; those within one group are not drawn. */
function joined(edges: readonly Edge[], stand: ReadonlyMap<string, string>): DrawnEdge[] {
  const between = new Map<string, { source: string; destination: string; edges: Edge[] }>();
  for (const edge of edges) {
    const source = stand.get(edge.source);
    const destination = stand.get(edge.destination);
    if (source === undefined || destination === undefined) continue;
    const within = source === destination && (source.startsWith("group/") || source.startsWith("more/"));
    if (within) continue;
    const id = `${source}>${destination}`;
    const known = between.get(id);
    if (known) known.edges.push(edge);
    else between.set(id, { source, destination, edges: [edge] });
  }
  return [...between].map(([id, b]) =>
    b.edges.length === 1 && b.edges[0]!.source === b.source && b.edges[0]!.destination === b.destination
      ? { ...b.edges[0]!, members: [b.edges[0]!.id] }
      : summed(id, b.source, b.destination, b.edges),
  );
}
