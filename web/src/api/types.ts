/**
 * The controller's answers, as `crates/control/src/observe` serialises them.
 *
 * Times are Unix seconds, rates are per second, durations are milliseconds.
 */

export type Health = "ok" | "warning" | "error" | "idle";

export interface MeshFacts {
  name: string;
  trustDomain: string;
  version: string;
  platform: "host" | "cluster";
  where: string;
}

export interface Session {
  user: string;
  actions: boolean;
  csrf: string;
  expiresAt: number;
  mesh: MeshFacts;
}

export type NodeKind = "service" | "gateway" | "outside" | "external";

export interface MeshNode {
  id: string;
  kind: NodeKind;
  name: string;
  namespace: string | null;
  hosts: string[];
  proxies: number;
  endpoints: number;
  ready: number;
  findings: number;
  health: Health;
  identities: string[];
}

export interface ReasonRate {
  code: string;
  rate: number;
}

export interface Edge {
  id: string;
  source: string;
  destination: string;
  protocol: "http" | "grpc" | "tcp";
  rate: number;
  success: number | null;
  p50: number | null;
  p99: number | null;
  mtls: "all" | "some" | "none";
  denied: number;
  failed: number;
  reasons: ReasonRate[];
  bytesIn: number;
  bytesOut: number;
  health: Health;
}

export interface Rest {
  edges: number;
  rate: number;
}

export interface Coverage {
  proxies: number;
  reporting: number;
  since: number;
}

export interface Graph {
  at: number;
  window: number;
  revision: number;
  nodes: MeshNode[];
  edges: Edge[];
  rest: Rest | null;
  coverage: Coverage;
}

export interface GraphDelta {
  whole?: boolean;
  revision: number;
  at: number;
  nodes: MeshNode[];
  removedNodes: string[];
  edges: Edge[];
  removedEdges: string[];
  rest: Rest | null;
  coverage: Coverage;
}

export interface Series {
  from: number;
  step: number;
  rate: number[];
  failed: number[];
  denied: number[];
  p50: (number | null)[];
  p99: (number | null)[];
}

export interface Series1 {
  from: number;
  step: number;
  values: (number | null)[];
}

export interface ErrorSample {
  at: number;
  reason: string;
  status: number;
  grpcStatus: number | null;
  method: string;
  path: string;
  count: number;
  proxy: string;
  upstream: string;
  cause: string;
  fix: string;
  doc: string;
}

export interface Considered {
  kind: string;
  name: string;
  outcome: string;
}

export interface Why {
  allowed: boolean;
  sourceIdentity: string;
  destinationIdentities: string[];
  route: string;
  rule: string;
  policy: string;
  reason: string;
  endpoints: string[];
  mtls: string;
  considered: Considered[];
  filters: string[];
  split: string[];
  limits: string[];
  timeout: string;
  retry: string;
  destinations: string[];
  conflicts: string[];
}

export interface EdgePage {
  edge: Edge;
  series: Series;
  errors: ErrorSample[];
  why: Why | null;
}

export interface ServiceRow {
  name: string;
  namespace: string | null;
  kind: string;
  ports: { port: number; protocol: string }[];
  endpoints: number;
  ready: number;
  rate: number;
  success: number | null;
  p50: number | null;
  p99: number | null;
  health: Health;
  findings: number;
}

export interface EndpointRow {
  address: string;
  workload: string;
  host: string;
  ready: boolean;
  leftOutBy: number;
  health: Health;
}

export interface ObjectName {
  kind: string;
  name: string;
  namespace: string | null;
}

export interface ObjectRef extends ObjectName {
  status: "accepted" | "refused" | "unknown";
  message: string;
  changedAt: number | null;
}

export interface Finding {
  code: string;
  severity: "error" | "warning";
  object: ObjectName | null;
  field: string;
  message: string;
  fix: string;
  doc: string;
}

export interface ProxyRow {
  id: string;
  spiffeId: string;
  name: string;
  kind: string;
  host: string;
  version: string;
  startedAt: number | null;
  cpu: number | null;
  memory: number | null;
  connections: number;
  requestsRate: number;
  subscriptions: number;
  sent: number;
  acked: number;
  lastError: string;
  faults: string;
  certificateNotAfter: number;
  reporting: boolean;
  logLevel: string;
}

export interface ServicePage {
  row: ServiceRow;
  endpoints: EndpointRow[];
  series: Series;
  inbound: Edge[];
  outbound: Edge[];
  objects: ObjectRef[];
  identities: string[];
  findings: Finding[];
  proxies: ProxyRow[];
}

export interface CertificateRow {
  subject: string;
  of: "proxy" | "gateway" | "root";
  notAfter: number;
  left: number;
  state: "ok" | "due" | "expired";
  where: string;
}

export interface ProxyPage {
  row: ProxyRow;
  cpuSeries: Series1;
  memorySeries: Series1;
  certificates: CertificateRow[];
}

export interface ProxyEndpoints {
  services: {
    name: string;
    port: number;
    endpoints: {
      address: string;
      healthy: boolean;
      ejected: boolean;
      /** The proxy's own word for it, such as `warming`. */
      state: string;
      /** Requests under way. */
      active: number | null;
      latencyMs: number | null;
    }[];
  }[];
}

export interface ObjectPage {
  ref: ObjectRef;
  yaml: string;
  acts: { on: string }[];
  findings: Finding[];
}

export interface Certificates {
  authority: { step: string; issuer: string; roots: { sha256: string; role: string; notAfter: number }[] };
  certificates: CertificateRow[];
}

export interface Mark {
  at: number;
  kind: "object" | "proxy" | "controller";
  what: string;
  verb: "created" | "changed" | "deleted" | "connected" | "gone" | "refused";
  who: string;
}

export interface Compared {
  id: string;
  before: Edge | null;
  after: Edge | null;
}

export interface Applied {
  results: { kind: string; name: string; outcome: string }[];
  findings: Finding[];
}

/** A line of the access log, and the proxy that told it. */
export type TapLine = Record<string, string | number | null | undefined>;
