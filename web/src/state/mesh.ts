/** The mesh as it is now: what the stream has told, and how the connection is. */
import { batch, computed, signal } from "@preact/signals";
import { get, setCsrf, whenNoSession } from "../api/client.ts";
import { Stream } from "../api/stream.ts";
import type { Coverage, Edge, GraphDelta, Mark, MeshNode, Rest, Session } from "../api/types.ts";

export const HISTORY = 900;
/** A mesh of thousands of proxies that all connect anew makes thousands of marks. */
const MAX_MARKS = 2000;

export type Connection =
  | { state: "connecting" }
  | { state: "live" }
  | { state: "offline"; since: number; retryAt: number }
  | { state: "expired" };

export interface GraphData {
  at: number;
  nodes: ReadonlyMap<string, MeshNode>;
  edges: ReadonlyMap<string, Edge>;
  rest: Rest | null;
  coverage: Coverage;
}

const EMPTY: GraphData = {
  at: 0,
  nodes: new Map(),
  edges: new Map(),
  rest: null,
  coverage: { proxies: 0, reporting: 0, since: 0 },
};

export const session = signal<Session | null>(null);
export const connection = signal<Connection>({ state: "connecting" });
export const live = signal<GraphData>(EMPTY);
export const findingsCount = signal({ count: 0, errors: 0 });
export const marks = signal<Mark[]>([]);
/** Grows with each delta, and stands still while the controller is away: pages that poll follow it. */
export const beat = signal(0);
export const mayAct = computed(() => session.value?.actions === true);

/** Returns the graph after a change. Nodes and edges that did not change stay the same objects. */
export function applied(before: GraphData, delta: GraphDelta): GraphData {
  const nodes = new Map(delta.whole ? [] : before.nodes);
  const edges = new Map(delta.whole ? [] : before.edges);
  for (const id of delta.removedNodes) nodes.delete(id);
  for (const id of delta.removedEdges) edges.delete(id);
  for (const node of delta.nodes) nodes.set(node.id, node);
  for (const edge of delta.edges) edges.set(edge.id, edge);
  return { at: delta.at, nodes, edges, rest: delta.rest, coverage: delta.coverage };
}

/** Adds a mark, in order of time, once; those older than the history go. */
export function withMark(before: Mark[], mark: Mark, now: number): Mark[] {
  const same = (m: Mark) => m.at === mark.at && m.what === mark.what && m.verb === mark.verb;
  if (before.some(same)) return before;
  const kept = before.filter((m) => m.at > now - HISTORY);
  return [...kept, mark].sort((a, b) => a.at - b.at).slice(-MAX_MARKS);
}

let revision = 0;
/** Marks a painted frame after the first data: tests measure the time between the two. */
let painted = false;

const stream = new Stream({
  open(now) {
    session.value = now;
    setCsrf(now.csrf);
    void loadMarks();
  },
  graph(delta) {
    if (!delta.whole && delta.revision !== revision + 1) {
      // A delta was missed: only a new stream begins with all there is.
      stream.connect();
      return;
    }
    revision = delta.revision;
    if (!painted && delta.nodes.length > 0) {
      painted = true;
      performance.mark("data");
    }
    batch(() => {
      live.value = applied(live.value, delta);
      connection.value = { state: "live" };
      beat.value += 1;
    });
  },
  findings(count) {
    findingsCount.value = count;
  },
  mark(mark) {
    marks.value = withMark(marks.value, mark, live.value.at || Date.now() / 1000);
  },
  offline(retryInMs) {
    const before = connection.value;
    const since = before.state === "offline" ? before.since : Date.now();
    connection.value = { state: "offline", since, retryAt: Date.now() + retryInMs };
  },
  expired() {
    connection.value = { state: "expired" };
  },
});

async function loadMarks(): Promise<void> {
  try {
    const to = Math.ceil(Date.now() / 1000) + 60;
    const answer = await get<{ marks: Mark[] }>("marks", { from: to - 60 - HISTORY, to });
    marks.value = answer.marks;
  } catch {
    // The time line is then without its marks; the stream says what is wrong with the connection.
  }
}

/** Starts following the mesh. */
export function connect(): void {
  whenNoSession(() => stream.expire());
  stream.connect();
}

/** A browser has six connections to a server for all its tabs: one that nobody looks at gives its own back. */
const HIDDEN_MS = 30_000;

export function followVisibility(): void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let dropped = false;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) {
      timer = setTimeout(() => {
        dropped = connection.value.state === "live";
        if (dropped) stream.drop();
      }, HIDDEN_MS);
    } else if (dropped) {
      dropped = false;
      connect();
    }
  });
}
