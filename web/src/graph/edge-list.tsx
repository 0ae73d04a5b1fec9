/** The graph as a table: the same calls, for those who read rows faster, and for screen readers. */
import type { Edge } from "../api/types.ts";
import { milliseconds, percent, rate, t, word } from "../i18n/index.ts";
import type { GraphData } from "../state/mesh.ts";
import { Badge, HealthMark } from "../ui/basics.tsx";
import { Icon } from "../ui/icons.tsx";
import { type Column, Table } from "../ui/table.tsx";
import type { DrawnEdge } from "./model.ts";

/** The name of an edge's end, as people know it. */
export function endName(id: string, graph?: GraphData): string {
  const node = graph?.nodes.get(id);
  if (node) return node.namespace ? `${node.name}.${node.namespace}` : node.name;
  if (id === "outside") return word("kind", "outside");
  return id.replace(/^[a-z]+\/(host:)?/, "");
}

export function Lock({ mtls }: { mtls: Edge["mtls"] }) {
  const label = word("edge.mtls", mtls);
  return (
    <span class={`lock mtls-${mtls}`} title={label}>
      <Icon name={mtls === "all" ? "lock" : "unlock"} size={14} />
      <span class="hidden">{label}</span>
    </span>
  );
}

export function Reasons({ edge }: { edge: Edge }) {
  return (
    <span class="badges">
      {edge.reasons.map((reason) => (
        <Badge key={reason.code} tone={edge.denied > 0 ? "denied" : "error"}>
          {reason.code} {rate(reason.rate)}
        </Badge>
      ))}
    </span>
  );
}

export function edgeColumns(graph?: GraphData): Column<Edge>[] {
  return [
    { id: "health", name: "", render: (e) => <HealthMark health={e.health} />, sort: (e) => e.health, narrow: true },
    {
      id: "source",
      name: t("edge.source"),
      render: (e) => endName(e.source, graph),
      sort: (e) => e.source,
      main: true,
    },
    {
      id: "destination",
      name: t("edge.destination"),
      render: (e) => endName(e.destination, graph),
      sort: (e) => e.destination,
    },
    { id: "rate", name: t("edge.rate"), render: (e) => rate(e.rate), sort: (e) => e.rate, number: true },
    {
      id: "success",
      name: t("edge.success"),
      render: (e) => percent(e.success),
      sort: (e) => e.success ?? 2,
      number: true,
    },
    { id: "p50", name: "P50", render: (e) => milliseconds(e.p50), sort: (e) => e.p50 ?? -1, number: true },
    { id: "p99", name: "P99", render: (e) => milliseconds(e.p99), sort: (e) => e.p99 ?? -1, number: true },
    { id: "mtls", name: t("edge.security"), render: (e) => <Lock mtls={e.mtls} />, sort: (e) => e.mtls },
    { id: "reasons", name: t("edge.reasons"), render: (e) => <Reasons edge={e} />, sort: (e) => e.denied + e.failed },
  ];
}

export function EdgeList(props: {
  edges: DrawnEdge[];
  graph: GraphData;
  picked: string | null;
  onPick: (id: string) => void;
}) {
  return (
    <div class="list-area">
      <Table
        label={t("graph.asList")}
        rows={props.edges}
        columns={edgeColumns(props.graph) as Column<DrawnEdge>[]}
        rowKey={(edge) => edge.id}
        picked={props.picked}
        onPick={(edge) => props.onPick(edge.id)}
        empty={t("edge.none")}
        firstSort={{ id: "rate", down: true }}
      />
    </div>
  );
}
