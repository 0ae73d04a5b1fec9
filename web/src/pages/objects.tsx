/** Lists of objects: policies, routes, or all. */
import type { JSX } from "preact";
import type { ObjectRef } from "../api/types.ts";
import { ago, t, word } from "../i18n/index.ts";
import { objectHref, route, setQuery } from "../state/route.ts";
import { now } from "../state/time.ts";
import { Badge, Failure, Loading } from "../ui/basics.tsx";
import { Select } from "../ui/fields.tsx";
import { useLoad } from "../ui/load.ts";
import { Page } from "../ui/page.tsx";
import { type Column, Table } from "../ui/table.tsx";

const ROUTES = new Set([
  "HTTPRoute",
  "GRPCRoute",
  "TCPRoute",
  "TLSRoute",
  "HTTPRouteGroup",
  "TrafficSplit",
  "HTTPFilter",
  "Ingress",
]);
/** Kinds that are neither a policy nor a route. */
const OTHERS = new Set([
  "Mesh",
  "Workload",
  "Gateway",
  "Secret",
  "ConfigMap",
  "ReferenceGrant",
  "Service",
  "Namespace",
  "GatewayClass",
]);

export type ObjectSet = "policies" | "routes" | "objects";

export function isOf(set: ObjectSet, kind: string): boolean {
  if (set === "objects") return true;
  return set === "routes" ? ROUTES.has(kind) : !ROUTES.has(kind) && !OTHERS.has(kind);
}

export function StatusBadge({ status }: { status: ObjectRef["status"] }): JSX.Element {
  const tone = { accepted: "ok", refused: "error", unknown: "idle" } as const;
  return <Badge tone={tone[status]}>{word("objects", status)}</Badge>;
}

export function objectColumns(): Column<ObjectRef>[] {
  return [
    { id: "kind", name: t("objects.kind"), render: (o) => o.kind, sort: (o) => o.kind },
    { id: "name", name: t("services.name"), render: (o) => o.name, sort: (o) => o.name, main: true },
    {
      id: "namespace",
      name: t("services.namespace"),
      render: (o) => o.namespace ?? "–",
      sort: (o) => o.namespace ?? "",
    },
    {
      id: "status",
      name: t("objects.status"),
      render: (o) => (
        <>
          <StatusBadge status={o.status} /> {o.message && <span class="muted small">{o.message}</span>}
        </>
      ),
      sort: (o) => o.status,
    },
    {
      id: "changed",
      name: t("objects.changed"),
      render: (o) =>
        o.changedAt === null ? <span class="muted">{t("objects.before")}</span> : ago(o.changedAt, now.value),
      sort: (o) => o.changedAt ?? 0,
      number: true,
    },
  ];
}

export function ObjectsPage({ set }: { set: ObjectSet }): JSX.Element {
  const { data, error, reload } = useLoad<{ objects: ObjectRef[] }>("objects");
  const kind = route.value.query.get("kind") ?? "";
  const all = (data?.objects ?? []).filter((o) => isOf(set, o.kind));
  const kinds = [...new Set(all.map((o) => o.kind))].sort();
  const rows = all
    .filter((o) => !kind || o.kind === kind)
    .toSorted((a, b) => a.kind.localeCompare(b.kind) || a.name.localeCompare(b.name));
  const columns = objectColumns().filter((c) => c.id !== "namespace" || rows.some((o) => o.namespace));
  const title = t(`objects.${set === "objects" ? "title" : set}`);
  return (
    <Page
      title={title}
      count={data ? rows.length : undefined}
      rows={rows}
      filter={(o) => `${o.kind} ${o.name} ${o.namespace ?? ""} ${o.status}`}
      tools={
        kinds.length > 1 && (
          <Select
            label={t("objects.kind")}
            value={kind}
            choices={[{ value: "", label: t("app.all") }, ...kinds.map((value) => ({ value, label: value }))]}
            onPick={(value) => setQuery({ kind: value })}
          />
        )
      }
    >
      {(visible) => (
        <>
          {error ? <Failure error={error} again={reload} /> : null}
          {!data && !error && <Loading />}
          {data && (
            <Table
              label={title}
              rows={visible}
              columns={columns}
              rowKey={(o) => `${o.kind}/${o.namespace}/${o.name}`}
              href={objectHref}
              empty={t("objects.empty")}
            />
          )}
        </>
      )}
    </Page>
  );
}
