/** A grid, for graphs that layers would make a tangle or a thread of. Pure. */
import { type LayoutRequest, NODE_HEIGHT, NODE_WIDTH, type Point } from "./layout.ts";

/** More edges per node than this, and layers tell nothing any more. */
const DENSE = 2.6;
const FEWEST = 12;

export function isDense({ nodes, edges }: LayoutRequest): boolean {
  return nodes.length >= FEWEST && edges.length > DENSE * nodes.length;
}

const COLUMN = NODE_WIDTH + 116;
const ROW = NODE_HEIGHT + 72;

/** Below this scale names cannot be read. */
const READABLE = 0.5;

/** How large a drawing of that size is on a screen of usual size. */
function scale(width: number, height: number): number {
  return Math.min(1, 1150 / width, 640 / height);
}

/** Whether a grid is much easier to read than layers of that size. */
export function isTooLong(nodes: number, width: number, height: number): boolean {
  const layered = scale(width, height);
  const rows = Math.sqrt(nodes / 1.9);
  return nodes >= FEWEST && layered < READABLE && scale(rows * 1.9 * COLUMN, rows * ROW) > 1.3 * layered;
}

/** Nodes in rows, in the order given; boxes of groups stay together, as members follow one another. */
export function gridded({ nodes }: LayoutRequest): Record<string, Point> {
  const columns = Math.max(1, Math.round(Math.sqrt((nodes.length * 1.9 * ROW) / COLUMN)));
  const places: Record<string, Point> = {};
  const apart = blocks(nodes);
  let top = 0;
  for (const block of apart) {
    const wide = Math.min(columns, block.length);
    for (const [i, id] of block.entries()) {
      const row = Math.floor(i / wide);
      // Every second row is moved by half: an edge then rarely runs behind another node.
      const shift = row % 2 ? COLUMN / 2 : 0;
      places[id] = { x: (i % wide) * COLUMN + shift, y: top + row * ROW };
    }
    top += Math.ceil(block.length / wide) * ROW + 40;
  }
  return places;
}

/** Nodes without a group first, then each group on its own. */
function blocks(nodes: LayoutRequest["nodes"]): string[][] {
  const by = new Map<string, string[]>();
  for (const { id, group } of nodes) by.set(group ?? "", [...(by.get(group ?? "") ?? []), id]);
  return [...by].sort(([a], [b]) => a.localeCompare(b)).map(([, ids]) => ids);
}
