/** A service or gateway: endpoints, who calls it and whom it calls, charts, and what acts on it. */
import type { JSX } from "preact";
import type { Edge, EndpointRow, ServicePage } from "../api/types.ts";
import { milliseconds, percent, rate, t, word } from "../i18n/index.ts";
import { href } from "../state/route.ts";
import { Badge, CopyButton, Failure, HealthMark, Loading, Section } from "../ui/basics.tsx";
import { FindingList } from "../ui/findings.tsx";
import { Icon } from "../ui/icons.tsx";
import { useLoad } from "../ui/load.ts";
import { Page } from "../ui/page.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { TrafficCharts } from "../ui/traffic.tsx";
import { Tile } from "./edge-panel.tsx";
import { CallList } from "./node-panel.tsx";
import { objectColumns } from "./objects.tsx";
import { proxyColumns } from "./proxies.tsx";

function endpointState(row: EndpointRow): JSX.Element {
  if (row.leftOutBy > 0) return <Badge tone="error">{t("endpoint.leftOut", { count: row.leftOutBy })}</Badge>;
  if (!row.ready) return <Badge tone="warning">{t("endpoint.notReady")}</Badge>;
  return <Badge tone="ok">{t("endpoint.ready")}</Badge>;
}

function endpointColumns(): Column<EndpointRow>[] {
  return [
    { id: "health", name: "", render: (e) => <HealthMark health={e.health} />, narrow: true },
    {
      id: "address",
      name: t("endpoint.address"),
      render: (e) => <span class="mono">{e.address}</span>,
      sort: (e) => e.address,
      main: true,
    },
    { id: "workload", name: t("endpoint.workload"), render: (e) => e.workload || "–", sort: (e) => e.workload },
    { id: "host", name: t("endpoint.host"), render: (e) => e.host || "–", sort: (e) => e.host },
    {
      id: "state",
      name: t("endpoint.state"),
      render: endpointState,
      sort: (e) => e.leftOutBy * 2 + Number(!e.ready),
    },
  ];
}

/** `id` is that of the node: a service and a gateway may have one name. */
export function ServicePageView({ id }: { id: string }): JSX.Element {
  const { data, error, reload } = useLoad<ServicePage>("service", { name: id });
  const gateway = id.startsWith("gateway/");
  const back = {
    href: href([gateway ? "gateways" : "services"]),
    text: t(`nav.${gateway ? "gateways" : "services"}`),
  };
  const tools = (
    <>
      <a class="button" href={href(["graph"], { node: id })}>
        <Icon name="graph" size={14} /> {t("services.inGraph")}
      </a>
      <a class="button" href={href(["tap"], { destination: id })}>
        <Icon name="tap" size={14} /> {t("edge.tap")}
      </a>
    </>
  );
  return (
    <Page title={id.replace(/^\w+\//, "")} back={back} tools={tools}>
      {error ? <Failure error={error} again={reload} /> : null}
      {!data && !error && <Loading />}
      {data && <Content page={data} />}
    </Page>
  );
}

const toEdge = (edge: Edge) => {
  location.hash = href(["graph"], { edge: edge.id });
};

function Content({ page }: { page: ServicePage }): JSX.Element {
  const { row } = page;
  const failing = row.success !== null && row.success < 0.99;
  return (
    <>
      <p class="numbers-state">
        <HealthMark health={row.health} label />
        <Badge>{word("kind", row.kind)}</Badge>
        {row.namespace && <Badge>{row.namespace}</Badge>}
        {row.ports.map((p) => (
          <Badge key={p.port}>{`${p.port} ${p.protocol}`}</Badge>
        ))}
      </p>
      <div class="tiles tiles-wide">
        <Tile name={t("edge.rate")} value={rate(row.rate)} />
        <Tile name={t("edge.success")} value={percent(row.success)} tone={failing ? "error" : ""} />
        <Tile name="P50" value={milliseconds(row.p50)} />
        <Tile name="P99" value={milliseconds(row.p99)} />
        {row.endpoints > 0 && (
          <Tile
            name={t("services.endpoints")}
            value={`${row.ready}/${row.endpoints}`}
            tone={row.ready === 0 ? "error" : ""}
          />
        )}
      </div>
      {page.findings.length > 0 && (
        <Section title={t("services.findings")} count={page.findings.length}>
          <FindingList findings={page.findings} />
        </Section>
      )}
      <TrafficCharts series={page.series} />
      <Section title={t("services.endpoints")} count={page.endpoints.length}>
        <Table
          label={t("services.endpoints")}
          rows={page.endpoints}
          columns={endpointColumns()}
          rowKey={(e) => e.address}
          empty={t("endpoint.none")}
        />
      </Section>
      <div class="two">
        <CallList title={t("edge.inbound")} edges={page.inbound} other="source" onPick={toEdge} />
        <CallList title={t("edge.outbound")} edges={page.outbound} other="destination" onPick={toEdge} />
      </div>
      <Section title={t("services.objects")} count={page.objects.length}>
        <Table
          label={t("services.objects")}
          rows={page.objects}
          columns={objectColumns().filter((c) => c.id !== "namespace" || page.row.namespace)}
          rowKey={(o) => `${o.kind}/${o.namespace}/${o.name}`}
          href={(o) => href(["object"], { kind: o.kind, name: o.name, namespace: o.namespace })}
          empty={t("objects.empty")}
        />
      </Section>
      <Section title={t("services.proxies")} count={page.proxies.length}>
        <Table
          label={t("services.proxies")}
          rows={page.proxies}
          columns={proxyColumns()}
          rowKey={(p) => p.id}
          href={(p) => href(["proxies", p.id])}
          empty={t("proxies.empty")}
        />
      </Section>
      <Section title={t("services.identities")} count={page.identities.length}>
        <ul class="plain-list">
          {page.identities.map((id) => (
            <li key={id} class="with-copy">
              <span class="mono">{id}</span>
              <CopyButton text={id} />
            </li>
          ))}
        </ul>
      </Section>
    </>
  );
}
