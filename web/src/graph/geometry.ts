/** Shapes of edges and boxes, and how the view moves. Pure. */
import { NODE_HEIGHT, NODE_WIDTH, type Point } from "./layout.ts";

export interface View {
  x: number;
  y: number;
  k: number;
}

export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

const n = (value: number) => Math.round(value * 10) / 10;

/** A smooth path (uniform B-spline) through the neighbourhood of the points, from the first to the last. */
export function smooth(points: readonly Point[]): string {
  const first = points[0];
  const last = points[points.length - 1];
  if (!first || !last) return "";
  let path = `M${n(first.x)},${n(first.y)}`;
  if (points.length === 2) return `${path}L${n(last.x)},${n(last.y)}`;
  const all = [first, ...points, last, last];
  for (let i = 2; i < all.length - 1; i += 1) {
    const [a, b, c] = [all[i - 2]!, all[i - 1]!, all[i]!];
    path += `C${n((2 * a.x + b.x) / 3)},${n((2 * a.y + b.y) / 3)} ${n((a.x + 2 * b.x) / 3)},${n((a.y + 2 * b.y) / 3)} `;
    path += `${n((a.x + 4 * b.x + c.x) / 6)},${n((a.y + 4 * b.y + c.y) / 6)}`;
  }
  return `${path}L${n(last.x)},${n(last.y)}`;
}

/** Points for an edge without a way of its own: out on the right, in on the left; a call back goes around below. */
export function plainWay(from: Point, to: Point): Point[] {
  const out = { x: from.x + NODE_WIDTH / 2, y: from.y };
  const into = { x: to.x - NODE_WIDTH / 2, y: to.y };
  if (into.x > out.x + 20) {
    const third = (into.x - out.x) / 3;
    return [out, { x: out.x + third, y: out.y }, { x: into.x - third, y: into.y }, into];
  }
  if (Math.abs(from.y - to.y) > NODE_HEIGHT) {
    const side = to.y > from.y ? 1 : -1;
    const [start, end] = [from.y + (side * NODE_HEIGHT) / 2, to.y - (side * NODE_HEIGHT) / 2];
    const third = (end - start) / 3;
    return [
      { x: from.x, y: start },
      { x: from.x, y: start + third },
      { x: to.x, y: end - third },
      { x: to.x, y: end },
    ];
  }
  const below = Math.max(from.y, to.y) + NODE_HEIGHT;
  return [
    { x: from.x, y: from.y + NODE_HEIGHT / 2 },
    { x: from.x, y: below },
    { x: to.x, y: below },
    { x: to.x, y: to.y + NODE_HEIGHT / 2 },
  ];
}

/** The point at a share of the way along the points: 0.5 is half-way. */
export function along(points: readonly Point[], share: number): Point {
  const lengths = points.slice(1).map((p, i) => Math.hypot(p.x - points[i]!.x, p.y - points[i]!.y));
  let left = lengths.reduce((a, b) => a + b, 0) * share;
  for (const [i, length] of lengths.entries()) {
    if (left <= length && length > 0) {
      const [a, b] = [points[i]!, points[i + 1]!];
      return { x: a.x + ((b.x - a.x) * left) / length, y: a.y + ((b.y - a.y) * left) / length };
    }
    left -= length;
  }
  return points[0] ?? { x: 0, y: 0 };
}

/** The rectangle of so many pixels around its middle. */
export function centred(at: Point, width: number, height: number): Rect {
  return { x: at.x - width / 2, y: at.y - height / 2, width, height };
}

function overlap(a: Rect, b: Rect): boolean {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

/** Shares of the way at which a label is tried: half-way, then by turns nearer to the one end and to the other. */
const SHARES = [0, ...[1, 2, 3, 4, 5, 6, 7, 8].flatMap((step) => [step / 20, -step / 20])].map((shift) => 0.5 + shift);

/**
 * The place for a label on a way, nearest to half-way, that overlaps nothing of what is `taken`; else right below or
 * above the way; else half-way.
 */
export function clearPlace(way: readonly Point[], width: number, height: number, taken: readonly Rect[]): Point {
  const places = SHARES.map((share) => along(way, share));
  const tried = [0, height + 2, -height - 2].flatMap((dy) => places.map(({ x, y }) => ({ x, y: y + dy })));
  const isClear = (at: Point) => !taken.some((rect) => overlap(centred(at, width, height), rect));
  return tried.find(isClear) ?? tried[0]!;
}

/** The rectangle around nodes, with room for a box's title above them. */
export function around(points: readonly Point[], padding = 18, title = 0): Rect {
  const xs = points.map((p) => p.x);
  const ys = points.map((p) => p.y);
  const x = Math.min(...xs) - NODE_WIDTH / 2 - padding;
  const y = Math.min(...ys) - NODE_HEIGHT / 2 - padding - title;
  return {
    x,
    y,
    width: Math.max(...xs) + NODE_WIDTH / 2 + padding - x,
    height: Math.max(...ys) + NODE_HEIGHT / 2 + padding - y,
  };
}

export const SMALLEST = 0.08;
export const LARGEST = 2.5;

/** The view that shows all of `content`, never larger than life, and never smaller than `least`: then its top. */
export function fit(content: Rect, width: number, height: number, least = SMALLEST): View {
  if (!(content.width > 0) || !(width > 0)) return { x: 0, y: 0, k: 1 };
  const k = Math.max(least, Math.min(1, width / content.width, height / content.height));
  return {
    x: width / 2 - k * (content.x + content.width / 2),
    y: content.height * k > height ? -k * content.y : height / 2 - k * (content.y + content.height / 2),
    k,
  };
}

/** The view zoomed by a factor, with the point of the screen `at` staying where it is. */
export function zoomed(view: View, factor: number, at: Point): View {
  const k = Math.max(SMALLEST, Math.min(LARGEST, view.k * factor));
  const ratio = k / view.k;
  return { k, x: at.x - (at.x - view.x) * ratio, y: at.y - (at.y - view.y) * ratio };
}

export type Direction = "up" | "down" | "left" | "right";

/** How far a node lies in the direction of a key, and how far beside that line. */
function offset(dx: number, dy: number, direction: Direction): { ahead: number; aside: number } {
  if (direction === "right" || direction === "left")
    return { ahead: direction === "right" ? dx : -dx, aside: Math.abs(dy) };
  return { ahead: direction === "down" ? dy : -dy, aside: Math.abs(dx) };
}

/** The node that an arrow key leads to: the nearest within a cone ahead, else the nearest of all that lie ahead. */
export function neighbour(nodes: Record<string, Point>, from: string, direction: Direction): string | null {
  const start = nodes[from];
  if (!start) return null;
  const found = Object.entries(nodes)
    .filter(([id]) => id !== from)
    .map(([id, p]) => ({ id, ...offset(p.x - start.x, p.y - start.y, direction) }))
    .filter(({ ahead }) => ahead > 1);
  const within = found.filter(({ ahead, aside }) => aside <= 2 * ahead);
  const nearest = (within.length ? within : found).sort((a, b) => a.ahead + 2 * a.aside - (b.ahead + 2 * b.aside));
  return nearest[0]?.id ?? null;
}
