/** An object: its manifest, what it acts on, its findings, and where actions are allowed a change. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { post } from "../api/client.ts";
import type { Applied, ObjectPage } from "../api/types.ts";
import { endName } from "../graph/edge-list.tsx";
import { ago, t } from "../i18n/index.ts";
import { mayAct, session } from "../state/mesh.ts";
import { href, nodeHref, route } from "../state/route.ts";
import { now } from "../state/time.ts";
import { CopyButton, Failure, Loading, Section } from "../ui/basics.tsx";
import { FindingList } from "../ui/findings.tsx";
import { useLoad } from "../ui/load.ts";
import { Page } from "../ui/page.tsx";
import { Yaml } from "../ui/yaml.tsx";
import { StatusBadge } from "./objects.tsx";

export function ObjectPageView(): JSX.Element {
  const { query } = route.value;
  const kind = query.get("kind") ?? "";
  const name = query.get("name") ?? "";
  const { data, error, reload } = useLoad<ObjectPage>("object", { kind, name, namespace: query.get("namespace") }, 3);
  return (
    <Page
      title={
        <>
          <span class="muted">{kind}/</span>
          {name}
        </>
      }
      back={{ href: href(["objects"]), text: t("nav.objects") }}
    >
      {error ? <Failure error={error} again={reload} /> : null}
      {!data && !error && <Loading />}
      {data && <Content page={data} reload={reload} />}
    </Page>
  );
}

function Content({ page, reload }: { page: ObjectPage; reload: () => void }): JSX.Element {
  const [editing, setEditing] = useState(false);
  // In a cluster the user's own tools and rights change objects.
  const editable = mayAct.value && session.value?.mesh.platform === "host" && page.ref.kind !== "Secret";
  return (
    <>
      <p class="numbers-state">
        <StatusBadge status={page.ref.status} />
        {page.ref.message && <span>{page.ref.message}</span>}
        <span class="muted">
          {t("objects.changed")}:{" "}
          {page.ref.changedAt === null ? t("objects.before") : ago(page.ref.changedAt, now.value)}
        </span>
      </p>
      {page.findings.length > 0 && (
        <Section title={t("services.findings")} count={page.findings.length}>
          <FindingList findings={page.findings} />
        </Section>
      )}
      <Section title={t("objects.acts")} count={page.acts.length}>
        {page.acts.length === 0 && <p class="muted">{t("objects.actsOnNothing")}</p>}
        <ul class="chips">
          {page.acts.map(({ on }) => (
            <li key={on}>
              <a href={nodeHref(on) ?? href(["graph"], { node: on })}>{endName(on)}</a>
            </li>
          ))}
        </ul>
      </Section>
      <Section title={t("objects.manifest")}>
        {editing ? (
          <Editor page={page} onDone={() => setEditing(false)} reload={reload} />
        ) : (
          <div class="manifest">
            <div class="manifest-tools">
              {editable && (
                <button type="button" class="button" onClick={() => setEditing(true)}>
                  {t("objects.edit")}
                </button>
              )}
              <CopyButton text={page.yaml} />
            </div>
            <Yaml text={page.yaml} />
          </div>
        )}
      </Section>
    </>
  );
}

type Outcome = { text: string; findings: Applied["findings"] } | { error: unknown } | null;

function Editor({ page, onDone, reload }: { page: ObjectPage; onDone: () => void; reload: () => void }): JSX.Element {
  const [yaml, setYaml] = useState(page.yaml);
  const [sure, setSure] = useState(false);
  const [outcome, setOutcome] = useState<Outcome>(null);
  const { kind, name } = page.ref;
  const apply = async (dryRun: boolean) => {
    try {
      const done = await post<Applied>("actions/apply", { yaml, dryRun });
      const what = (done.results ?? []).map((r) => `${r.kind}/${r.name} ${r.outcome}`).join(", ");
      const clean = done.findings.length === 0 ? t("objects.checked") : "";
      setOutcome({ text: dryRun ? clean : t("objects.applied", { what }), findings: done.findings });
      if (!dryRun) reload();
    } catch (error) {
      setOutcome({ error });
    }
  };
  const remove = async () => {
    try {
      await post("actions/delete", { kind, name });
      location.hash = href(["objects"]);
    } catch (error) {
      setOutcome({ error });
    }
  };
  return (
    <div class="editor">
      <textarea
        aria-label={t("objects.manifest")}
        value={yaml}
        rows={Math.min(30, yaml.split("\n").length + 2)}
        spellcheck={false}
        onInput={(event) => setYaml(event.currentTarget.value)}
      />
      <div class="editor-tools">
        <button type="button" class="button" onClick={() => apply(true)}>
          {t("objects.dryRun")}
        </button>
        <button type="button" class="button primary" onClick={() => apply(false)}>
          {t("objects.apply")}
        </button>
        <button type="button" class="button" onClick={onDone}>
          {t("objects.cancel")}
        </button>
        <span class="toolbar-space" />
        <button type="button" class="button danger" onClick={() => (sure ? void remove() : setSure(true))}>
          {sure ? t("objects.confirmDelete", { what: `${kind}/${name}` }) : t("objects.delete")}
        </button>
      </div>
      {outcome && "error" in outcome && <Failure error={outcome.error} />}
      {outcome && "text" in outcome && (
        <div role="status">
          {outcome.text && <p>{outcome.text}</p>}
          <FindingList findings={outcome.findings} />
        </div>
      )}
    </div>
  );
}
