/** Certificates: who signs, which roots are believed, and when each certificate ends. */
import type { JSX } from "preact";
import type { CertificateRow, Certificates } from "../api/types.ts";
import { ago, dateTime, duration, t, word } from "../i18n/index.ts";
import { now } from "../state/time.ts";
import { Badge, Facts, Failure, Identity, Loading, Section } from "../ui/basics.tsx";
import { useLoad } from "../ui/load.ts";
import { Page } from "../ui/page.tsx";
import { type Column, Table } from "../ui/table.tsx";

const TONE = { ok: "ok", due: "warning", expired: "error" } as const;

function left(row: CertificateRow): string {
  return row.state === "expired" || row.left <= 0
    ? ago(row.notAfter, now.value)
    : t("certificates.left", { left: duration(row.notAfter - now.value) });
}

function columns(): Column<CertificateRow>[] {
  return [
    {
      id: "subject",
      name: t("certificates.subject"),
      render: (c) => <Subject row={c} />,
      sort: (c) => c.subject,
      main: true,
    },
    { id: "of", name: t("certificates.of"), render: (c) => word("certificates", c.of), sort: (c) => c.of },
    {
      id: "state",
      name: t("certificates.state"),
      render: (c) => <Badge tone={TONE[c.state]}>{word("certificates", c.state)}</Badge>,
      sort: (c) => ["expired", "due", "ok"].indexOf(c.state),
    },
    {
      id: "expires",
      name: t("certificates.expires"),
      render: (c) => (
        <span title={dateTime(c.notAfter)}>
          {left(c)} <span class="muted small">{dateTime(c.notAfter)}</span>
        </span>
      ),
      sort: (c) => c.notAfter,
    },
    { id: "where", name: t("certificates.where"), render: (c) => c.where, sort: (c) => c.where },
  ];
}

function Subject({ row }: { row: CertificateRow }): JSX.Element {
  if (row.subject.startsWith("spiffe://")) return <Identity id={row.subject} />;
  const short = row.of === "root" && row.subject.length > 24 ? `${row.subject.slice(0, 16)}…` : row.subject;
  return (
    <span class="mono" title={row.subject}>
      {short}
    </span>
  );
}

export function CertificateTable({ rows }: { rows: readonly CertificateRow[] }): JSX.Element {
  return (
    <Table
      label={t("certificates.title")}
      rows={rows}
      columns={columns()}
      rowKey={(c) => `${c.subject}${c.where}`}
      empty={t("objects.empty")}
    />
  );
}

export function CertificatesPage(): JSX.Element {
  const { data, error, reload } = useLoad<Certificates>("certificates");
  return (
    <Page
      title={t("certificates.title")}
      count={data?.certificates.length}
      rows={(data?.certificates ?? []).toSorted((a, b) => a.notAfter - b.notAfter)}
      filter={(c) => `${c.subject} ${c.state} ${c.where}`}
    >
      {(visible) => (
        <>
          {error ? <Failure error={error} again={reload} /> : null}
          {!data && !error && <Loading />}
          {data && (
            <>
              <Section title={t("certificates.authority")}>
                <Facts
                  rows={[
                    [t("certificates.step"), data.authority.step],
                    [t("certificates.issuer"), data.authority.issuer || t("certificates.issuerRoot")],
                  ]}
                />
                <ul class="roots">
                  {data.authority.roots.map((root) => (
                    <li key={root.sha256}>
                      <Badge tone={root.role === "signing" ? "ok" : "idle"}>{root.role}</Badge>
                      <span class="mono" title={root.sha256}>
                        {root.sha256.slice(0, 24)}…
                      </span>
                      <span class="muted">{t("certificates.left", { left: duration(root.notAfter - now.value) })}</span>
                    </li>
                  ))}
                </ul>
              </Section>
              <CertificateTable rows={visible} />
            </>
          )}
        </>
      )}
    </Page>
  );
}
