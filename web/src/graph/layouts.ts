/** Keeps layouts: asks the worker for new ones, and remembers them for this browser tab. */
import { signal } from "@preact/signals";
import { isOutgrown, type Layout, type LayoutAnswer, type LayoutRequest, withNewNodes } from "./layout.ts";

declare const LAYOUT_WORKER: string;

const STORED = "tulle.layouts";
const REMEMBERED = 6;

type Kept = Record<string, Layout>;

function restored(): Kept {
  try {
    return JSON.parse(sessionStorage.getItem(STORED) ?? "{}") as Kept;
  } catch {
    return {};
  }
}

export const layouts = signal<Kept>(restored());
const asked = new Set<string>();
let worker: Worker | null = null;

function keep(key: string, layout: Layout): void {
  const { [key]: _, ...others } = layouts.value;
  const newest = Object.entries(others).slice(1 - REMEMBERED);
  layouts.value = { ...Object.fromEntries(newest), [key]: layout };
  try {
    sessionStorage.setItem(STORED, JSON.stringify(layouts.value));
  } catch {
    // The layout is then computed again after a reload.
  }
}

/** Asked for first: the engine has then compiled the layout when the first data come. */
const PRACTICE: LayoutRequest = {
  key: "",
  down: false,
  nodes: ["a", "b", "c", "d"].map((id) => ({ id, group: null })),
  edges: ["ab", "ac", "bd", "cd", "da"].map(([source, destination]) => ({
    id: `${source}${destination}`,
    source: source!,
    destination: destination!,
  })),
};

/** The worker starts early: loading it then overlaps with waiting for the first data. */
export function warmUp(): void {
  if (worker) return;
  worker = new Worker(LAYOUT_WORKER);
  worker.onmessage = ({ data }: MessageEvent<LayoutAnswer>) => {
    if (data.key === PRACTICE.key) return;
    asked.delete(data.key);
    const { key, ...layout } = data;
    keep(key, layout);
  };
  worker.postMessage(PRACTICE);
}

/** Sees to it that there is a layout: computes one where there is none, or an outgrown one, else places only what is new. */
export function ensure(request: LayoutRequest): void {
  const known = layouts.value[request.key];
  if (known && !isOutgrown(known, request.edges)) {
    const grown = withNewNodes(known, request.nodes, request.edges);
    if (grown !== known) keep(request.key, grown);
    return;
  }
  if (asked.has(request.key) || request.nodes.length === 0) return;
  asked.add(request.key);
  warmUp();
  worker?.postMessage(request);
}

/** Forgets a layout; it is then computed anew. */
export function forget(key: string): void {
  const { [key]: _, ...others } = layouts.value;
  layouts.value = others;
}
