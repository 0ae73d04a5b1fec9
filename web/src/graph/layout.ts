/**
 * Where nodes stand. A layout is computed once for a set of nodes (in a worker), and then kept: nodes that come later
 * are placed where there is room, and nothing else moves. Only a layout of which most edges were not known yet, as in the
 * first seconds of a mesh, is computed again.
 */

export interface Point {
  x: number;
  y: number;
}

export interface Layout {
  /** Middle of each node. */
  nodes: Record<string, Point>;
  /** The way of each edge, from border to border; edges that came later have none. */
  edges: Record<string, Point[]>;
  /** Where there is room for the label of an edge. */
  labels: Record<string, Point>;
  /** How many edges there were when it was computed. */
  drawn: number;
}

export interface LayoutRequest {
  key: string;
  /** From top to bottom, for narrow screens; else from left to right. */
  down: boolean;
  nodes: { id: string; group: string | null }[];
  edges: { id: string; source: string; destination: string }[];
}

export interface LayoutAnswer extends Layout {
  key: string;
}

export const NODE_WIDTH = 168;
export const NODE_HEIGHT = 54;
const COLUMN = NODE_WIDTH + 150;
const ROW = NODE_HEIGHT + 38;

function isFree(at: Point, taken: readonly Point[]): boolean {
  return taken.every((p) => Math.abs(p.x - at.x) >= NODE_WIDTH + 24 || Math.abs(p.y - at.y) >= NODE_HEIGHT + 18);
}

/** The first free place at `wanted`, or above or below it, else in the next columns. */
function freePlace(wanted: Point, taken: readonly Point[]): Point {
  for (let column = 0; column < 40; column += 1) {
    for (let row = 0; row < 40; row += 1) {
      const side = row % 2 ? 1 : -1;
      const at = { x: wanted.x + column * COLUMN, y: wanted.y + side * Math.ceil(row / 2) * ROW };
      if (isFree(at, taken)) return at;
    }
  }
  return { x: wanted.x, y: Math.max(0, ...taken.map((p) => p.y)) + ROW };
}

/** Returns the layout with places for nodes that have none; the others keep theirs, and `before` itself stays. */
export function withNewNodes(before: Layout, nodes: LayoutRequest["nodes"], edges: LayoutRequest["edges"]): Layout {
  const missing = nodes.filter((n) => !before.nodes[n.id]);
  if (missing.length === 0) return before;
  const places: Record<string, Point> = { ...before.nodes };
  for (const node of missing) {
    const callers = edges.filter((e) => e.destination === node.id).flatMap((e) => places[e.source] ?? []);
    const called = edges.filter((e) => e.source === node.id).flatMap((e) => places[e.destination] ?? []);
    places[node.id] = freePlace(wantedPlace(callers, called, Object.values(places)), Object.values(places));
  }
  return { ...before, nodes: places };
}

/** Whether most edges came after it was computed: then it says little about who calls whom. */
export function isOutgrown(layout: Layout, edges: LayoutRequest["edges"]): boolean {
  return edges.length > 2 * layout.drawn;
}

/** Right of its callers; else left of whom it calls; else below everything. */
function wantedPlace(callers: Point[], called: Point[], all: Point[]): Point {
  const mean = (points: Point[]) => points.reduce((sum, p) => sum + p.y, 0) / points.length;
  if (callers.length) return { x: Math.max(...callers.map((p) => p.x)) + COLUMN, y: mean(callers) };
  if (called.length) return { x: Math.min(...called.map((p) => p.x)) - COLUMN, y: mean(called) };
  if (all.length === 0) return { x: 0, y: 0 };
  return { x: Math.min(...all.map((p) => p.x)), y: Math.max(...all.map((p) => p.y)) + ROW };
}
