/** The drawing: nodes that can be focused and picked, edges between them, and keys to move about. */
import { computed, useSignal } from "@preact/signals";
import type { JSX, RefObject } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { t } from "../i18n/index.ts";
import { along, around, centred, clearPlace, type Direction, neighbour, type Rect } from "./geometry.ts";
import { type Layout, NODE_HEIGHT, NODE_WIDTH, type Point } from "./layout.ts";
import type { Drawn, DrawnEdge } from "./model.ts";
import {
  Arrows,
  BoxShape,
  EdgeLabel,
  EdgeShape,
  edgeTone,
  LABEL_HEIGHT,
  labelWidth,
  NodeShape,
  nodeTitle,
  wayOf,
} from "./shapes.tsx";
import { fitTo, moved, panBy, reveal, useViewport, view, zoomBy } from "./viewport.ts";

const transform = computed(() => `translate(${view.value.x} ${view.value.y}) scale(${view.value.k})`);
const far = computed(() => view.value.k < 0.45);

const ARROWS: Record<string, Direction> = {
  ArrowUp: "up",
  ArrowDown: "down",
  ArrowLeft: "left",
  ArrowRight: "right",
};
/** Up to so many edges all have a label; beyond that only those in trouble and the picked one. */
const LABELLED = 90;

export interface CanvasProps {
  drawn: Drawn;
  layout: Layout;
  layoutKey: string;
  node: string | null;
  edge: string | null;
  onNode: (id: string) => void;
  onEdge: (id: string) => void;
  onCollapse: (group: string) => void;
}

export function Canvas(props: CanvasProps): JSX.Element {
  const { drawn, layout } = props;
  const svg = useRef<SVGSVGElement>(null);
  const focused = useSignal<string | null>(null);
  useViewport(svg);
  const nodes = drawn.nodes.filter((node) => layout.nodes[node.id]);
  const places = useMemo(
    () => Object.fromEntries(nodes.map((node) => [node.id, layout.nodes[node.id]!])),
    [layout, nodes.map((n) => n.id).join()],
  );
  useFit(svg, props.layoutKey, places);
  useFirstPaint(nodes.length > 0);
  useRevealed(svg, props, places);

  /** Nodes stand in a grid: edges have no ways of their own, and there is little room for labels. */
  const dense = nodes.length > 8 && Object.keys(layout.edges).length === 0;
  const names = new Map(nodes.map((node) => [node.id, nodeTitle(node)]));
  const near = nearby(props);
  const order = (edge: string) => (edge === props.edge ? 1 : 0);
  const edges = drawn.edges
    .flatMap((edge) => {
      const way = wayOf(edge, places, layout.edges);
      return way ? [{ edge, way }] : [];
    })
    .sort((a, b) => order(a.edge.id) - order(b.edge.id) || a.edge.denied - b.edge.denied);
  const boxes = drawn.boxes.flatMap((box) => {
    const points = box.members.flatMap((id) => places[id] ?? []);
    return points.length ? [{ box, at: around(points, 16, 20) }] : [];
  });
  const first = focused.value && places[focused.value] ? focused.value : (nodes[0]?.id ?? null);

  const isNear = (edge: DrawnEdge) => near?.edges.has(edge.id) ?? false;
  const isLabelled = (edge: DrawnEdge) =>
    (edges.length <= LABELLED && !dense) || edge.id === props.edge || isNear(edge) || isNotable(edge);
  const state = (edge: DrawnEdge) => {
    if (edge.id === props.edge) return "selected near";
    return near === null ? "" : isNear(edge) ? "near" : "dimmed";
  };

  const labels = placedLabels(
    edges.filter(({ edge }) => isLabelled(edge)),
    layout,
    Object.values(places),
  );

  const onKeyDown = (event: KeyboardEvent) => {
    const element = svg.current;
    if (!element) return;
    const direction = ARROWS[event.key];
    const id = (event.target as Element).closest("[data-id]")?.getAttribute("data-id");
    if (direction && id && !event.shiftKey) {
      event.preventDefault();
      const next = neighbour(places, id, direction);
      if (next) element.querySelector<SVGGElement>(`[data-id="${CSS.escape(next)}"]`)?.focus();
    } else if (direction) {
      event.preventDefault();
      const step = 60;
      panBy(
        { left: step, right: -step }[direction as string] ?? 0,
        { up: step, down: -step }[direction as string] ?? 0,
      );
    } else if ((event.key === "Enter" || event.key === " ") && id) {
      event.preventDefault();
      props.onNode(id);
    } else if (event.key === "+" || event.key === "=") zoomBy(1.25, element);
    else if (event.key === "-") zoomBy(0.8, element);
    else if (event.key === "0") fitTo(around(Object.values(places)), element, true);
  };

  return (
    // biome-ignore lint/a11y/useSemanticElements: SVG has no fieldset.
    <svg
      class={["canvas", far.value && "far", dense && "dense"].filter(Boolean).join(" ")}
      ref={svg}
      role="group"
      aria-roledescription={t("nav.graph")}
      aria-label={`${t("graph.title")}. ${t("graph.keys")}`}
      onKeyDown={onKeyDown}
    >
      <Arrows />
      <g transform={transform}>
        {boxes.map(({ box, at }) => (
          <BoxShape key={box.id} box={box} at={at} onClose={drawn.collapsed ? props.onCollapse : null} />
        ))}
        {edges.map(({ edge, way }) => (
          <EdgeShape
            key={edge.id}
            edge={edge}
            way={way}
            names={{ source: names.get(edge.source) ?? "", destination: names.get(edge.destination) ?? "" }}
            state={state(edge)}
            onPick={props.onEdge}
          />
        ))}
        {nodes.map((node) => (
          <NodeShape
            key={node.id}
            node={node}
            at={places[node.id]!}
            selected={node.id === props.node}
            dimmed={near !== null && !near.nodes.has(node.id)}
            focusable={node.id === first}
            onPick={props.onNode}
            onFocus={(id) => {
              focused.value = id;
              const at = places[id];
              if (at && svg.current?.querySelector(":focus-visible")) reveal(around([at]), svg.current);
            }}
          />
        ))}
        {labels.map(({ edge, at }) => (
          <EdgeLabel key={`label ${edge.id}`} edge={edge} at={at} state={state(edge)} onPick={props.onEdge} />
        ))}
      </g>
    </svg>
  );
}

/**
 * Labels with their places. An edge that came after the layout has no room of its own: its label goes where no card and
 * no other label is. Beyond LABELLED of them looking for that would take longer than drawing.
 */
function placedLabels(edges: { edge: DrawnEdge; way: Point[] }[], layout: Layout, nodes: Point[]) {
  const taken: Rect[] = nodes.map((at) => centred(at, NODE_WIDTH, NODE_HEIGHT));
  const withRoom = (edge: DrawnEdge) => layout.edges[edge.id] && layout.labels[edge.id];
  for (const { edge } of edges) {
    const at = withRoom(edge);
    if (at) taken.push(centred(at, labelWidth(edge), LABEL_HEIGHT));
  }
  return edges.map(({ edge, way }, i) => {
    const room = withRoom(edge);
    if (room) return { edge, at: room };
    if (i >= LABELLED) return { edge, at: along(way, 0.5) };
    const at = clearPlace(way, labelWidth(edge), LABEL_HEIGHT, taken);
    taken.push(centred(at, labelWidth(edge), LABEL_HEIGHT));
    return { edge, at };
  });
}

function isNotable(edge: DrawnEdge): boolean {
  const tone = edgeTone(edge);
  return tone === "denied" || tone === "error";
}

/** The picked node or edge with its neighbours; null: nothing is picked, and nothing is dimmed. */
function nearby({ drawn, node, edge }: CanvasProps): { nodes: Set<string>; edges: Set<string> } | null {
  const touching = drawn.edges.filter((e) => (edge ? e.id === edge : e.source === node || e.destination === node));
  const known = edge ? touching.length > 0 : drawn.nodes.some((n) => n.id === node);
  if (!known) return null;
  const nodes = new Set(touching.flatMap((e) => [e.source, e.destination]));
  if (node && !edge) nodes.add(node);
  return { nodes, edges: new Set(touching.map((e) => e.id)) };
}

/** Brings what is picked out from behind the panel. */
function useRevealed(
  svg: RefObject<SVGSVGElement | null>,
  { drawn, node, edge }: CanvasProps,
  places: Record<string, Point>,
): void {
  const picked = drawn.edges.find((e) => e.id === edge);
  const ends = edge ? [picked?.source, picked?.destination] : [node];
  const key = ends.filter((id) => id && places[id]).join(">");
  useEffect(() => {
    const points = key.split(">").flatMap((id) => places[id] ?? []);
    if (svg.current && points.length) reveal(around(points), svg.current);
  }, [key]);
}

/** Shows everything when a layout is new, and when the size changes before somebody moved the view. */
function useFit(
  svg: RefObject<SVGSVGElement | null>,
  key: string,
  places: Record<string, { x: number; y: number }>,
): void {
  const ready = Object.keys(places).length > 0;
  useLayoutEffect(() => {
    if (!svg.current || !ready) return;
    moved.value = false;
    fitTo(around(Object.values(places)), svg.current);
  }, [key, ready]);
  useEffect(() => {
    const element = svg.current;
    if (!element || !ready) return;
    let first = true;
    const observer = new ResizeObserver(() => {
      // The first call only tells the size, which the fit above knows.
      if (!first && !moved.value) fitTo(around(Object.values(places)), element);
      first = false;
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, [key, ready, places]);
}

/** Says when the first graph was painted: a budget is about the time since the data came. */
function useFirstPaint(ready: boolean): void {
  useEffect(() => {
    if (!ready || performance.getEntriesByName("painted").length) return;
    requestAnimationFrame(() => setTimeout(() => performance.mark("painted")));
  }, [ready]);
}
