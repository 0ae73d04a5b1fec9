/** One proxy: what is in force, what it refused, its endpoints, certificates, resources and requests. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { post } from "../api/client.ts";
import type { ProxyEndpoints, ProxyPage, ProxyRow } from "../api/types.ts";
import { ago, bytes, cores, milliseconds, rate, t, word } from "../i18n/index.ts";
import { mayAct, session } from "../state/mesh.ts";
import { href, route, setQuery } from "../state/route.ts";
import { now } from "../state/time.ts";
import { Badge, CopyButton, Facts, Failure, Loading, Tabs } from "../ui/basics.tsx";
import { Chart } from "../ui/chart.tsx";
import { Field, Select } from "../ui/fields.tsx";
import { JsonView } from "../ui/json.tsx";
import { useLoad } from "../ui/load.ts";
import { Page } from "../ui/page.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { Tap } from "../ui/tap.tsx";
import { CertificateTable } from "./certificates.tsx";
import { Tile } from "./edge-panel.tsx";
import { ConfigBadge, Expiry } from "./proxies.tsx";

const TABS = ["overview", "config", "endpoints", "certificates", "tap"] as const;

export function ProxyPageView({ id }: { id: string }): JSX.Element {
  const { data, error, reload } = useLoad<ProxyPage>("proxy", { id });
  const asked = route.value.query.get("tab") ?? "";
  const tab = TABS.find((name) => name === asked) ?? "overview";
  const tabs = TABS.map((name) => ({ id: name, label: t(`proxies.${name}`) }));
  return (
    <Page title={data?.row.name ?? id} back={{ href: href(["proxies"]), text: t("nav.proxies") }}>
      <Tabs label={t("proxies.title")} tabs={tabs} current={tab} onPick={(next) => setQuery({ tab: next }, true)} />
      {error ? <Failure error={error} again={reload} /> : null}
      {!data && !error && <Loading />}
      {data && (
        <div role="tabpanel" class="tab-panel">
          <Trouble row={data.row} />
          {tab === "overview" && <Overview page={data} />}
          {tab === "config" && <Config id={id} />}
          {tab === "endpoints" && <Endpoints id={id} />}
          {tab === "certificates" && <CertificateTable rows={data.certificates} />}
          {tab === "tap" && (
            <Tap
              fixed={{ source: data.row.kind === "gateway" ? `gateway/${data.row.name}` : `service/${data.row.name}` }}
            />
          )}
        </div>
      )}
    </Page>
  );
}

/** A refused or partly refused configuration comes before everything else. */
function Trouble({ row }: { row: ProxyRow }): JSX.Element | null {
  if (!row.lastError && !row.faults) return null;
  return (
    <div class="failure" role="alert">
      <p class="failure-title">{t(row.lastError ? "proxies.refusedTitle" : "proxies.faultsTitle")}</p>
      <p class="mono">{row.lastError || row.faults}</p>
      {row.lastError && <p class="muted">{t("proxies.refusedHint", { n: row.acked })}</p>}
    </div>
  );
}

function Overview({ page }: { page: ProxyPage }): JSX.Element {
  const { row } = page;
  return (
    <>
      <div class="tiles tiles-wide">
        <Tile name={t("edge.rate")} value={row.reporting ? rate(row.requestsRate) : "–"} />
        <Tile name={t("proxies.connections")} value={String(row.connections)} />
        <Tile name={t("proxies.cpu")} value={cores(row.cpu)} />
        <Tile name={t("proxies.memory")} value={bytes(row.memory)} />
      </div>
      <div class="charts">
        <Chart
          title={t("chart.cpu")}
          from={page.cpuSeries.from}
          step={page.cpuSeries.step}
          format={cores}
          lines={[{ label: t("proxies.cpu"), tone: "accent", values: page.cpuSeries.values, fill: true }]}
        />
        <Chart
          title={t("chart.memory")}
          from={page.memorySeries.from}
          step={page.memorySeries.step}
          format={bytes}
          lines={[{ label: t("proxies.memory"), tone: "ok", values: page.memorySeries.values, fill: true }]}
        />
      </div>
      <Facts
        rows={[
          [
            t("proxies.identity"),
            <span key="id" class="with-copy">
              <span class="mono">{row.spiffeId}</span>
              <CopyButton text={row.spiffeId} />
            </span>,
          ],
          [t("proxies.kind"), word("kind", row.kind)],
          [t("endpoint.host"), row.host],
          [t("proxies.version"), row.version],
          [t("proxies.started"), row.startedAt !== null && ago(row.startedAt, now.value)],
          [t("proxies.config"), <ConfigBadge key="config" row={row} />],
          [t("proxies.sent"), String(row.sent)],
          [t("proxies.acked"), String(row.acked)],
          [t("proxies.subscriptions"), String(row.subscriptions)],
          [t("proxies.certificate"), <Expiry key="expiry" notAfter={row.certificateNotAfter} />],
          [t("proxies.logLevel"), <LogLevel key="level" row={row} />],
          [t("proxies.revoke"), revocable() && <Revoke key="revoke" identity={row.spiffeId} />],
        ]}
      />
    </>
  );
}

const LEVELS = ["error", "warn", "info", "debug", "trace"];

/** The level, and a switch where the controller allows actions. It goes back by itself. */
function LogLevel({ row }: { row: ProxyRow }): JSX.Element {
  const [level, setLevel] = useState(row.logLevel || "debug");
  const [done, setDone] = useState<unknown>(null);
  if (!mayAct.value) return <>{row.logLevel || "–"}</>;
  const change = () =>
    post("actions/log-level", { proxy: row.id, level, seconds: 600 }).then(
      () => setDone(t("proxies.levelSet", { level })),
      (error: unknown) => setDone(error),
    );
  return (
    <span class="inline-form">
      <Select
        label={t("proxies.logLevel")}
        value={level}
        choices={LEVELS.map((value) => ({ value, label: value }))}
        onPick={setLevel}
      />
      <button type="button" class="button" onClick={change}>
        {t("proxies.setLevel")}
      </button>
      {typeof done === "string" && <span role="status">{done}</span>}
      {done instanceof Error && <Failure error={done} />}
    </span>
  );
}

/** In a cluster the mesh's own objects revoke identities. */
const revocable = () => mayAct.value && session.value?.mesh.platform === "host";

/** Refuses an identity from now on: asked twice, as its workloads are cut off. */
function Revoke({ identity }: { identity: string }): JSX.Element {
  const [sure, setSure] = useState(false);
  const [reason, setReason] = useState("");
  const [done, setDone] = useState<unknown>(null);
  const revoke = () =>
    post("actions/revoke", { identity, reason }).then(
      () => setDone(t("proxies.revoked")),
      (error: unknown) => setDone(error),
    );
  if (typeof done === "string") return <span role="status">{done}</span>;
  return (
    <span class="inline-form">
      {sure && <Field label={t("proxies.revokeReason")} value={reason} onInput={setReason} />}
      <button type="button" class="button danger" onClick={() => (sure ? void revoke() : setSure(true))}>
        {t(sure ? "proxies.revokeSure" : "proxies.revokeAsk")}
      </button>
      {done instanceof Error && <Failure error={done} />}
    </span>
  );
}

function Config({ id }: { id: string }): JSX.Element {
  const { data, error, reload } = useLoad<{ config: unknown }>("proxy/config", { id }, 0);
  if (error) return <Failure error={error} again={reload} />;
  if (!data) return <Loading />;
  return <JsonView value={data.config} />;
}

type Endpoint = ProxyEndpoints["services"][number]["endpoints"][number] & { service: string };

function Endpoints({ id }: { id: string }): JSX.Element {
  const { data, error, reload } = useLoad<ProxyEndpoints>("proxy/endpoints", { id }, 2);
  if (error) return <Failure error={error} again={reload} />;
  if (!data) return <Loading />;
  const rows = data.services.flatMap((s) => s.endpoints.map((e) => ({ ...e, service: `${s.name}:${s.port}` })));
  const columns: Column<Endpoint>[] = [
    { id: "service", name: t("kind.service"), render: (e) => e.service, sort: (e) => e.service, main: true },
    {
      id: "address",
      name: t("endpoint.address"),
      render: (e) => <span class="mono">{e.address}</span>,
      sort: (e) => e.address,
    },
    {
      id: "state",
      name: t("endpoint.state"),
      render: (e) =>
        e.ejected ? (
          <Badge tone="error">{t("endpoint.ejected")}</Badge>
        ) : (
          <Badge tone={e.healthy ? "ok" : "warning"}>
            {e.healthy ? t("endpoint.healthy") : word("endpoint", e.state || "notReady")}
          </Badge>
        ),
      sort: (e) => Number(e.ejected) * 2 + Number(!e.healthy),
    },
    {
      id: "active",
      name: t("endpoint.active"),
      render: (e) => e.active ?? "–",
      sort: (e) => e.active ?? -1,
      number: true,
    },
    {
      id: "latency",
      name: t("chart.latency"),
      render: (e) => milliseconds(e.latencyMs ?? null),
      sort: (e) => e.latencyMs ?? -1,
      number: true,
    },
  ];
  return (
    <Table
      label={t("proxies.endpoints")}
      rows={rows}
      columns={columns}
      rowKey={(e) => `${e.service}${e.address}`}
      empty={t("endpoint.none")}
    />
  );
}
