/** Computes layouts off the page's thread: 150 nodes take a third of a second. */
import dagre from "@dagrejs/dagre";
import { gridded, isDense, isTooLong } from "./grid.ts";
import { type LayoutAnswer, type LayoutRequest, NODE_HEIGHT, NODE_WIDTH, type Point } from "./layout.ts";

/** Labels of edges get room of their own up to so many edges; beyond that the graph would become too wide. */
const LABELLED = 60;

function computed(request: LayoutRequest): LayoutAnswer {
  const { key, down, nodes, edges } = request;
  const drawn = edges.length;
  if (isDense(request)) return { key, nodes: gridded(request), edges: {}, labels: {}, drawn };
  const boxed = nodes.some((n) => n.group !== null);
  const graph = new dagre.graphlib.Graph({ compound: boxed, multigraph: false });
  const roomy = edges.length <= LABELLED;
  graph.setGraph({
    rankdir: down ? "TB" : "LR",
    nodesep: down ? 14 : roomy ? 30 : 22,
    ranksep: roomy ? 34 : 110,
    marginx: 40,
    marginy: 40,
  });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) graph.setNode(node.id, { width: NODE_WIDTH, height: NODE_HEIGHT });
  for (const node of boxed ? nodes : []) {
    if (node.group === null) continue;
    if (!graph.hasNode(node.group)) graph.setNode(node.group, { width: 0, height: 0 });
    graph.setParent(node.id, node.group);
  }
  for (const edge of edges) {
    if (edge.source === edge.destination) continue;
    const label = roomy ? { width: 98, height: 24, labelpos: "c" as const } : {};
    graph.setEdge(edge.source, edge.destination, { id: edge.id, ...label });
  }
  dagre.layout(graph);
  const { width = 1, height = 1 } = graph.graph() as { width?: number; height?: number };
  if (!down && isTooLong(nodes.length, width, height))
    return { key, nodes: gridded(request), edges: {}, labels: {}, drawn };
  const places: Record<string, Point> = {};
  for (const { id } of nodes) {
    const { x, y } = graph.node(id) as Point;
    places[id] = { x, y };
  }
  const ways: Record<string, Point[]> = {};
  const labels: Record<string, Point> = {};
  for (const edge of graph.edges()) {
    const { id, points, x, y } = graph.edge(edge) as unknown as Point & { id: string; points: Point[] };
    ways[id] = points.map((point) => ({ x: point.x, y: point.y }));
    if (roomy) labels[id] = { x, y };
  }
  return { key, nodes: places, edges: ways, labels, drawn };
}

addEventListener("message", (event: MessageEvent<LayoutRequest>) => {
  postMessage(computed(event.data));
});
