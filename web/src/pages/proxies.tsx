/** The list of proxies: configuration in force or refused, certificate, CPU and memory. */
import type { JSX } from "preact";
import type { ProxyRow } from "../api/types.ts";
import { bytes, cores, duration, rate, t, word } from "../i18n/index.ts";
import { href } from "../state/route.ts";
import { now } from "../state/time.ts";
import { Badge, Failure, Loading, type Tone } from "../ui/basics.tsx";
import { useLoad } from "../ui/load.ts";
import { Page } from "../ui/page.tsx";
import { type Column, Table } from "../ui/table.tsx";

type ConfigState = "refused" | "partly" | "pending" | "current";
const TONES: Record<ConfigState, Tone> = { refused: "error", partly: "warning", pending: "accent", current: "ok" };
const ORDER: ConfigState[] = ["refused", "partly", "pending", "current"];

export function configState(row: ProxyRow): ConfigState {
  if (row.lastError) return "refused";
  if (row.faults) return "partly";
  return row.acked < row.sent ? "pending" : "current";
}

export function ConfigBadge({ row }: { row: ProxyRow }): JSX.Element {
  const state = configState(row);
  return <Badge tone={TONES[state]}>{word("proxies", state)}</Badge>;
}

export function Expiry({ notAfter }: { notAfter: number }): JSX.Element {
  const left = notAfter - now.value;
  if (left <= 0) return <Badge tone="error">{t("certificates.expired")}</Badge>;
  const text = t("certificates.left", { left: duration(left) });
  return left < 600 ? <Badge tone="warning">{text}</Badge> : <span>{text}</span>;
}

export function proxyColumns(): Column<ProxyRow>[] {
  return [
    {
      id: "name",
      name: t("services.name"),
      render: (p) => p.name,
      sort: (p) => p.name,
      main: true,
    },
    { id: "kind", name: t("proxies.kind"), render: (p) => word("kind", p.kind), sort: (p) => p.kind },
    { id: "host", name: t("endpoint.host"), render: (p) => p.host || "–", sort: (p) => p.host },
    {
      id: "config",
      name: t("proxies.config"),
      render: (p) => <ConfigBadge row={p} />,
      sort: (p) => ORDER.indexOf(configState(p)),
    },
    {
      id: "certificate",
      name: t("proxies.certificate"),
      render: (p) => <Expiry notAfter={p.certificateNotAfter} />,
      sort: (p) => p.certificateNotAfter,
    },
    {
      id: "rate",
      name: t("edge.rate"),
      render: (p) => (p.reporting ? rate(p.requestsRate) : <Badge tone="warning">{t("proxies.silent")}</Badge>),
      sort: (p) => p.requestsRate,
      number: true,
    },
    {
      id: "connections",
      name: t("proxies.connections"),
      render: (p) => p.connections,
      sort: (p) => p.connections,
      number: true,
    },
    { id: "cpu", name: t("proxies.cpu"), render: (p) => cores(p.cpu), sort: (p) => p.cpu ?? -1, number: true },
    {
      id: "memory",
      name: t("proxies.memory"),
      render: (p) => bytes(p.memory),
      sort: (p) => p.memory ?? -1,
      number: true,
    },
    { id: "version", name: t("proxies.version"), render: (p) => p.version || "–", sort: (p) => p.version },
  ];
}

export function ProxiesPage(): JSX.Element {
  const { data, error, reload } = useLoad<{ proxies: ProxyRow[] }>("proxies");
  const weight = (p: ProxyRow) => ORDER.indexOf(configState(p));
  const rows = (data?.proxies ?? []).toSorted((a, b) => weight(a) - weight(b) || a.name.localeCompare(b.name));
  return (
    <Page
      title={t("proxies.title")}
      count={data ? rows.length : undefined}
      rows={rows}
      filter={(p) => `${p.name} ${p.spiffeId} ${p.host} ${p.version} ${configState(p)}`}
    >
      {(visible) => (
        <>
          {error ? <Failure error={error} again={reload} /> : null}
          {!data && !error && <Loading />}
          {data && (
            <Table
              label={t("proxies.title")}
              rows={visible}
              columns={proxyColumns()}
              rowKey={(p) => p.id}
              href={(p) => href(["proxies", p.id])}
              empty={t("proxies.empty")}
            />
          )}
        </>
      )}
    </Page>
  );
}
