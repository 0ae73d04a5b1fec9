/** The graph of the mesh with its filters, and the panel of what is picked. */
import type { JSX } from "preact";
import { useLayoutEffect, useMemo } from "preact/hooks";
import { Canvas } from "../graph/canvas.tsx";
import { EdgeList } from "../graph/edge-list.tsx";
import { around } from "../graph/geometry.ts";
import type { LayoutRequest } from "../graph/layout.ts";
import { ensure, forget, layouts } from "../graph/layouts.ts";
import { Legend } from "../graph/legend.tsx";
import { type Drawn, draw, LIMIT, type Options } from "../graph/model.ts";
import { clearFilter, closeGroup, isFiltered, NO_FILTER, openGroup, options } from "../graph/options.ts";
import { Toolbar } from "../graph/toolbar.tsx";
import { fitTo, zoomBy } from "../graph/viewport.ts";
import { t } from "../i18n/index.ts";
import { useGraph } from "../state/graph.ts";
import type { GraphData } from "../state/mesh.ts";
import { session } from "../state/mesh.ts";
import { route, setQuery } from "../state/route.ts";
import { GraphNotices } from "../ui/banner.tsx";
import { Empty, Failure, IconButton, Loading } from "../ui/basics.tsx";
import { EdgePanel } from "./edge-panel.tsx";
import { NodePanel } from "./node-panel.tsx";

/** What is laid out: all that could be drawn, so that a filter moves nothing. Too many, and the filter counts. */
function request(key: string, graph: GraphData, drawn: Drawn, chosen: Options): LayoutRequest {
  const whole =
    graph.nodes.size <= LIMIT && isFiltered(chosen)
      ? draw([...graph.nodes.values()], [...graph.edges.values()], { ...chosen, ...NO_FILTER })
      : drawn;
  const boxed = whole.boxes.length > 0;
  return {
    key,
    down: narrow(),
    nodes: whole.nodes.map(({ id, group }) => ({ id, group: boxed ? group : null })),
    edges: whole.edges.map(({ id, source, destination }) => ({ id, source, destination })),
  };
}

const narrow = () => innerWidth < 640;

function layoutKey(graph: GraphData, drawn: Drawn, chosen: Options): string {
  const mesh = `${session.value?.mesh.name ?? ""}${narrow() ? "|down" : ""}`;
  if (graph.nodes.size <= LIMIT) return `${mesh}|${drawn.grouping}`;
  const open = drawn.collapsed ? [...chosen.expanded].sort().join() : `${chosen.search}/${chosen.show}`;
  return `${mesh}|${drawn.grouping}|${drawn.collapsed ? "groups" : "few"}|${open}`;
}

export function GraphPage(): JSX.Element {
  const { graph, error, known } = useGraph();
  const { query } = route.value;
  const chosen = options.value;
  const edge = query.get("edge");
  const node = query.get("node");
  const asList = query.get("view") === "list";
  const drawn = useMemo(() => draw([...graph.nodes.values()], [...graph.edges.values()], chosen), [graph, chosen]);
  const key = layoutKey(graph, drawn, chosen);
  useLayoutEffect(() => {
    if (!asList) ensure(request(key, graph, drawn, chosen));
  }, [key, graph, drawn, asList, layouts.value]);
  const layout = layouts.value[key];

  const pickNode = (id: string) => {
    if (id.startsWith("group/")) openGroup(id);
    else if (!id.startsWith("more/")) setQuery({ node: id === node ? null : id, edge: null, tab: null });
  };
  const pickEdge = (id: string) => setQuery({ edge: id === edge ? null : id, node: null, tab: null });
  const svg = () => document.querySelector<SVGSVGElement>("svg.canvas");
  const everything = () => {
    const element = svg();
    const places = drawn.nodes.flatMap((n) => layout?.nodes[n.id] ?? []);
    if (element && places.length) fitTo(around(places), element, true);
  };
  const picked = edge ? drawn.edges.find((e) => e.id === edge) : undefined;

  return (
    <div class={`graph-page ${edge || node ? "with-panel" : ""}`}>
      <h1 class="hidden">{t("graph.title")}</h1>
      <div class="graph-main">
        <Toolbar drawn={drawn} />
        <GraphNotices graph={graph} />
        <div class="graph-area">
          {error ? <Failure error={error} /> : null}
          {!known && <Loading />}
          {known && graph.nodes.size === 0 && <Empty title={t("graph.empty")} hint={t("graph.emptyHint")} />}
          {known && graph.nodes.size > 0 && drawn.nodes.length === 0 && (
            <Empty title={t("graph.noMatch")} hint={t("graph.noMatchHint")}>
              <button type="button" class="button" onClick={clearFilter}>
                {t("graph.clear")}
              </button>
            </Empty>
          )}
          {asList && known && <EdgeList edges={drawn.edges} graph={graph} picked={edge} onPick={pickEdge} />}
          {!asList && layout && drawn.nodes.length > 0 && (
            <Canvas
              drawn={drawn}
              layout={layout}
              layoutKey={key}
              node={node}
              edge={edge}
              onNode={pickNode}
              onEdge={pickEdge}
              onCollapse={closeGroup}
            />
          )}
          {!asList && (
            <div class="graph-tools">
              <IconButton icon="plus" label={t("graph.zoomIn")} onClick={() => svg() && zoomBy(1.25, svg()!)} />
              <IconButton icon="minus" label={t("graph.zoomOut")} onClick={() => svg() && zoomBy(0.8, svg()!)} />
              <IconButton icon="fit" label={t("graph.fit")} onClick={everything} />
              <IconButton icon="tidy" label={t("graph.tidy")} onClick={() => forget(key)} />
            </div>
          )}
          {!asList && <Legend />}
          {edge && <EdgePanel key={edge} id={edge} drawn={picked} graph={graph} />}
          {node && !edge && <NodePanel key={node} id={node} graph={graph} />}
        </div>
      </div>
    </div>
  );
}
