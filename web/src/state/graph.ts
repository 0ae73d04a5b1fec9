/** The graph that is looked at: the live one, or that of another window or moment. */
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../api/client.ts";
import type { Graph } from "../api/types.ts";
import { beat, type GraphData, live } from "./mesh.ts";
import { at, window_ } from "./time.ts";

/** The stream's window. Others are asked for. */
const STREAMED = 60;

export function byId(graph: Graph): GraphData {
  return {
    at: graph.at,
    nodes: new Map(graph.nodes.map((node) => [node.id, node])),
    edges: new Map(graph.edges.map((edge) => [edge.id, edge])),
    rest: graph.rest,
    coverage: graph.coverage,
  };
}

export interface Shown {
  graph: GraphData;
  error: unknown;
  /** There is an answer, though it may be empty. */
  known: boolean;
}

export function useGraph(): Shown {
  const moment = at.value;
  const length = window_.value;
  const streamed = moment === null && length === STREAMED;
  const [asked, setAsked] = useState<{ key: string; graph: GraphData } | null>(null);
  const [error, setError] = useState<unknown>(null);
  const key = `${moment}/${length}`;
  const asking = useRef<string | null>(null);
  const tick = moment === null ? Math.floor(beat.value / 2) : 0;
  useEffect(() => {
    // One question at a time for a moment and window; the answer to an older one comes too late.
    if (streamed || asking.current === key) return;
    asking.current = key;
    const done = () => {
      const current = asking.current === key;
      if (current) asking.current = null;
      return current;
    };
    get<Graph>("graph", { window: length, at: moment }).then(
      (graph) => {
        if (!done()) return;
        setError(null);
        setAsked({ key, graph: byId(graph) });
      },
      (failed: unknown) => done() && setError(failed),
    );
  }, [streamed, key, tick]);
  if (streamed) return { graph: live.value, error: null, known: live.value.at > 0 };
  // The last answer stays until the next: the graph does not flicker while somebody moves through time.
  return { graph: asked?.graph ?? live.value, error, known: asked !== null || live.value.at > 0 };
}
