/** All about a call from one node to another: traffic, why it is allowed or denied, and the last errors. */
import type { JSX } from "preact";
import type { Edge, EdgePage, Why } from "../api/types.ts";
import { edgeColumns, endName, Lock, Reasons } from "../graph/edge-list.tsx";
import type { DrawnEdge } from "../graph/model.ts";
import { bytes, milliseconds, percent, rate, t, word } from "../i18n/index.ts";
import type { GraphData } from "../state/mesh.ts";
import { href, nodeHref, route, setQuery } from "../state/route.ts";
import { at } from "../state/time.ts";
import { Badge, Facts, Failure, HealthMark, Loading, Tabs } from "../ui/basics.tsx";
import { ErrorList, Explanation } from "../ui/errors.tsx";
import { Icon } from "../ui/icons.tsx";
import { useLoad } from "../ui/load.ts";
import { Panel } from "../ui/panel.tsx";
import { Table } from "../ui/table.tsx";
import { TrafficCharts } from "../ui/traffic.tsx";
import { WhyView } from "../ui/why.tsx";

const close = () => setQuery({ edge: null, tab: null });

export function EdgeEnds({ edge, graph }: { edge: Pick<Edge, "source" | "destination">; graph: GraphData }) {
  const end = (id: string) => {
    const link = nodeHref(id);
    const name = endName(id, graph);
    return link ? <a href={link}>{name}</a> : <span>{name}</span>;
  };
  return (
    <span class="ends">
      {end(edge.source)}
      <span aria-hidden="true">→</span>
      {end(edge.destination)}
    </span>
  );
}

export function EdgePanel({ id, drawn, graph }: { id: string; drawn: DrawnEdge | undefined; graph: GraphData }) {
  const summed = drawn !== undefined && (drawn.members.length > 1 || drawn.members[0] !== id);
  if (summed) return <SummedPanel edge={drawn} graph={graph} />;
  return <OnePanel id={id} graph={graph} />;
}

/** An edge between groups: the calls it stands for. */
function SummedPanel({ edge, graph }: { edge: DrawnEdge; graph: GraphData }): JSX.Element {
  const members = edge.members.flatMap((id) => graph.edges.get(id) ?? []);
  const columns = edgeColumns(graph).filter((c) =>
    ["health", "source", "destination", "rate", "success"].includes(c.id),
  );
  return (
    <Panel
      title={`${edge.source.replace(/^\w+\//, "")} → ${edge.destination.replace(/^\w+\//, "")}`}
      label={t("edge.members")}
      onClose={close}
    >
      <Numbers edge={edge} />
      <h3>{t("edge.members")}</h3>
      <Table
        label={t("edge.members")}
        rows={members}
        columns={columns}
        rowKey={(member) => member.id}
        onPick={(member) => setQuery({ edge: member.id, tab: null })}
        empty={t("edge.none")}
        firstSort={{ id: "rate", down: true }}
      />
    </Panel>
  );
}

function OnePanel({ id, graph }: { id: string; graph: GraphData }): JSX.Element {
  const past = at.value;
  const loaded = useLoad<EdgePage>("edge", { id, window: 900 }, past === null ? 1 : 0);
  const edge = graph.edges.get(id) ?? (past === null ? loaded.data?.edge : undefined);
  const [source = "", destination = ""] = id.split(">");
  const ends = { source, destination };
  const names = { from: endName(source, graph), to: endName(destination, graph) };
  const troubled = edge !== undefined && (edge.denied > 0 || edge.health === "error");
  const tab = route.value.query.get("tab") ?? (troubled ? "why" : "traffic");
  const tabs = [
    { id: "why", label: t("edge.why") },
    { id: "traffic", label: t("edge.traffic") },
    { id: "errors", label: t("edge.errors"), badge: loaded.data?.errors.length ?? 0 },
  ];
  return (
    <Panel title={<EdgeEnds edge={ends} graph={graph} />} label={`${names.from} → ${names.to}`} onClose={close}>
      {edge ? <Numbers edge={edge} /> : loaded.data && <p class="muted">{t("edge.gone")}</p>}
      <Tabs
        label={`${names.from} → ${names.to}`}
        tabs={tabs}
        current={tab}
        onPick={(next) => setQuery({ tab: next }, true)}
      />
      {loaded.error ? <Failure error={loaded.error} again={loaded.reload} /> : null}
      {!loaded.data && !loaded.error && <Loading />}
      {loaded.data && (
        <div role="tabpanel" class="tab-panel">
          {tab === "traffic" && <TrafficCharts series={loaded.data.series} />}
          {tab === "errors" && <ErrorList errors={loaded.data.errors} names={names} />}
          {tab === "why" && <WhyTab page={loaded.data} edge={edge ?? loaded.data.edge} names={names} past={past} />}
        </div>
      )}
      <p class="panel-links">
        <a href={href(["tap"], { source, destination })}>
          <Icon name="tap" size={14} /> {t("edge.tap")}
        </a>
        <a href={href(["why"], { from: names.from, to: names.to })}>
          <Icon name="why" size={14} /> {t("edge.explain")}
        </a>
      </p>
    </Panel>
  );
}

interface WhyTabProps {
  page: EdgePage;
  edge: Edge;
  names: { from: string; to: string };
  past: number | null;
}

function WhyTab({ page, edge, names, past }: WhyTabProps): JSX.Element {
  // The edge's own answer is of now. In the past the objects of then decide.
  const then = useLoad<Why>(
    past === null || !page.why ? null : "why",
    { from: edge.source, to: edge.destination, at: past },
    0,
  );
  const why = past === null ? page.why : then.data;
  const codes = edge.reasons.map((reason) => reason.code);
  const newest = page.errors[0];
  return (
    <>
      {then.error ? <Failure error={then.error} /> : null}
      {page.why === null && <p class="muted">{t("why.notAsked")}</p>}
      {why && <WhyView why={why} {...names} />}
      {codes.map((code) => {
        const sample = page.errors.find((error) => error.reason === code);
        return (
          <div class="reason-card" key={code}>
            <p>
              <Badge tone={code === "denied" ? "denied" : "error"}>{code}</Badge>
            </p>
            <Explanation code={code} cause={sample?.cause ?? ""} fix={sample?.fix ?? ""} names={names} />
          </div>
        );
      })}
      {newest && (
        <>
          <h3>{t("edge.errors")}</h3>
          <ErrorList errors={page.errors.slice(0, 3)} names={names} known={codes} />
        </>
      )}
    </>
  );
}

function Numbers({ edge }: { edge: Edge }): JSX.Element {
  return (
    <div class="numbers">
      <p class="numbers-state">
        <HealthMark health={edge.health} label />
        <span class="lock-text">
          <Lock mtls={edge.mtls} /> {word("edge.mtls", edge.mtls)}
        </span>
        <Badge>{edge.protocol.toUpperCase()}</Badge>
      </p>
      <div class="tiles">
        <Tile name={edge.protocol === "tcp" ? t("edge.connections") : t("edge.rate")} value={rate(edge.rate)} />
        <Tile
          name={t("edge.success")}
          value={percent(edge.success)}
          tone={edge.success !== null && edge.success < 0.99 ? "error" : ""}
        />
        <Tile name={t("edge.p50")} value={milliseconds(edge.p50)} />
        <Tile name={t("edge.p99")} value={milliseconds(edge.p99)} />
      </div>
      <Facts
        rows={[
          [t("edge.denied"), edge.denied > 0 && <span class="text-error">{rate(edge.denied)}</span>],
          [t("edge.failed"), edge.failed > 0 && <span class="text-error">{rate(edge.failed)}</span>],
          [t("edge.bytes"), edge.protocol === "tcp" && `${bytes(edge.bytesIn)}/s / ${bytes(edge.bytesOut)}/s`],
          [t("edge.reasons"), edge.reasons.length > 0 && <Reasons edge={edge} />],
        ]}
      />
    </div>
  );
}

export function Tile({ name, value, tone = "" }: { name: string; value: string; tone?: string }): JSX.Element {
  return (
    <div class={`tile ${tone ? `tile-${tone}` : ""}`}>
      <span class="tile-name">{name}</span>
      <span class="tile-value">{value}</span>
    </div>
  );
}
