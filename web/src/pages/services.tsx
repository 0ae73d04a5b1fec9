/** Lists of services and of gateways. */
import type { JSX } from "preact";
import type { ServiceRow } from "../api/types.ts";
import { milliseconds, percent, rate, t } from "../i18n/index.ts";
import { live } from "../state/mesh.ts";
import { href } from "../state/route.ts";
import { Badge, Failure, HealthMark, Loading } from "../ui/basics.tsx";
import { useLoad } from "../ui/load.ts";
import { Page } from "../ui/page.tsx";
import { type Column, Table } from "../ui/table.tsx";

export function ready(row: ServiceRow): JSX.Element {
  if (row.kind === "gateway" && row.endpoints === 0) return <span class="muted">–</span>;
  const text = `${row.ready}/${row.endpoints}`;
  return row.ready < row.endpoints || row.endpoints === 0 ? (
    <Badge tone={row.ready === 0 ? "error" : "warning"}>{text}</Badge>
  ) : (
    <span>{text}</span>
  );
}

const RANK = { error: 0, warning: 1, ok: 2, idle: 3 };

function columns(): Column<ServiceRow>[] {
  return [
    { id: "health", name: "", render: (r) => <HealthMark health={r.health} />, narrow: true },
    { id: "name", name: t("services.name"), render: (r) => r.name, sort: (r) => r.name, main: true },
    {
      id: "namespace",
      name: t("services.namespace"),
      render: (r) => r.namespace ?? "–",
      sort: (r) => r.namespace ?? "",
    },
    {
      id: "ports",
      name: t("services.ports"),
      render: (r) => r.ports.map((p) => `${p.port}/${p.protocol}`).join(", "),
    },
    { id: "endpoints", name: t("services.endpoints"), render: ready, sort: (r) => r.ready, number: true },
    { id: "rate", name: t("edge.rate"), render: (r) => rate(r.rate), sort: (r) => r.rate, number: true },
    {
      id: "success",
      name: t("edge.success"),
      render: (r) => percent(r.success),
      sort: (r) => r.success ?? 2,
      number: true,
    },
    { id: "p50", name: "P50", render: (r) => milliseconds(r.p50), sort: (r) => r.p50 ?? -1, number: true },
    { id: "p99", name: "P99", render: (r) => milliseconds(r.p99), sort: (r) => r.p99 ?? -1, number: true },
    {
      id: "findings",
      name: t("services.findings"),
      render: (r) => (r.findings ? <Badge tone="warning">{r.findings}</Badge> : ""),
      sort: (r) => r.findings,
      number: true,
    },
  ];
}

/** The id of a row's node. Pods without a Service are nodes of their own kind of id. */
function idOf(row: ServiceRow): string {
  const workload = `workload/${row.name}`;
  return live.value.nodes.has(workload) ? workload : `${row.kind}/${row.name}`;
}

function List({ kind, title, empty }: { kind: "service" | "gateway"; title: string; empty: string }): JSX.Element {
  const { data, error, reload } = useLoad<{ services: ServiceRow[] }>("services");
  const rows = (data?.services ?? []).filter((r) => (r.kind === "gateway") === (kind === "gateway"));
  const shown = columns().filter((c) => c.id !== "namespace" || rows.some((r) => r.namespace));
  const inOrder = rows.toSorted((a, b) => RANK[a.health] - RANK[b.health] || a.name.localeCompare(b.name));
  return (
    <Page
      title={title}
      count={data ? rows.length : undefined}
      filter={(r) => `${r.name} ${r.namespace}`}
      rows={inOrder}
    >
      {(visible) => (
        <>
          {error ? <Failure error={error} again={reload} /> : null}
          {!data && !error && <Loading />}
          {data && (
            <Table
              label={title}
              rows={visible}
              columns={shown}
              rowKey={(r) => r.name}
              href={(r) => href(["services", idOf(r)])}
              empty={empty}
            />
          )}
        </>
      )}
    </Page>
  );
}

export function ServicesPage(): JSX.Element {
  return <List kind="service" title={t("services.title")} empty={t("services.empty")} />;
}

export function GatewaysPage(): JSX.Element {
  return <List kind="gateway" title={t("gateways.title")} empty={t("gateways.empty")} />;
}
