/** All findings of the mesh, errors first. */
import type { JSX } from "preact";
import type { Finding } from "../api/types.ts";
import { t } from "../i18n/index.ts";
import { Empty, Failure, Loading } from "../ui/basics.tsx";
import { FindingList } from "../ui/findings.tsx";
import { useLoad } from "../ui/load.ts";
import { Page } from "../ui/page.tsx";

export function FindingsPage(): JSX.Element {
  const { data, error, reload } = useLoad<{ findings: Finding[] }>("findings");
  const rows = (data?.findings ?? []).toSorted(
    (a, b) => a.severity.localeCompare(b.severity) || a.code.localeCompare(b.code),
  );
  const text = (f: Finding) => `${f.code} ${f.object?.kind} ${f.object?.name} ${f.message}`;
  return (
    <Page title={t("findings.title")} count={data ? rows.length : undefined} rows={rows} filter={text}>
      {(visible) => (
        <>
          {error ? <Failure error={error} again={reload} /> : null}
          {!data && !error && <Loading />}
          {data && rows.length === 0 && (
            <Empty title={t("findings.none")} hint={t("findings.noneHint").replaceAll("`", "")} />
          )}
          <FindingList findings={visible} />
        </>
      )}
    </Page>
  );
}
