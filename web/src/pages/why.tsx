/** Asks why a call is allowed or denied, now or at a moment of the history. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Why } from "../api/types.ts";
import { endName } from "../graph/edge-list.tsx";
import { t } from "../i18n/index.ts";
import { live } from "../state/mesh.ts";
import { route, setQuery } from "../state/route.ts";
import { at } from "../state/time.ts";
import { Failure, Loading } from "../ui/basics.tsx";
import { Field, Select } from "../ui/fields.tsx";
import { useLoad } from "../ui/load.ts";
import { Page } from "../ui/page.tsx";
import { WhyView } from "../ui/why.tsx";

const METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

export function WhyPage(): JSX.Element {
  const { query } = route.value;
  const asked = Object.fromEntries(
    ["from", "to", "port", "method", "path"].map((name) => [name, query.get(name) ?? ""]),
  );
  const complete = Boolean(asked.from && asked.to);
  const { data, error, reload } = useLoad<Why>(complete ? "why" : null, { ...asked, at: at.value }, 2);
  return (
    <Page title={t("why.title")} intro={t("why.intro")}>
      <Form key={JSON.stringify(asked)} asked={asked} />
      {error ? <Failure error={error} again={reload} /> : null}
      {complete && !data && !error && <Loading />}
      {data && (
        <div class="why-answer">
          <WhyView why={data} from={asked.from!} to={asked.to!} />
        </div>
      )}
    </Page>
  );
}

function Form({ asked }: { asked: Record<string, string> }): JSX.Element {
  const [fields, setFields] = useState(asked);
  const set = (name: string) => (value: string) => setFields((before) => ({ ...before, [name]: value }));
  const names = [...live.value.nodes.values()]
    .filter((node) => node.kind === "service" || node.kind === "gateway")
    .map((node) => endName(node.id, live.value))
    .sort();
  return (
    <form
      class="why-form"
      onSubmit={(event) => {
        event.preventDefault();
        setQuery(fields);
      }}
    >
      <Field label={t("why.from")} value={fields.from ?? ""} list={names} required onInput={set("from")} />
      <Field label={t("why.to")} value={fields.to ?? ""} list={names} required onInput={set("to")} />
      <Field
        label={t("why.port")}
        value={fields.port ?? ""}
        placeholder={t("why.any")}
        inputMode="numeric"
        onInput={set("port")}
      />
      <Select
        label={t("why.method")}
        visibleLabel
        value={fields.method || "GET"}
        choices={METHODS.map((value) => ({ value, label: value }))}
        onPick={set("method")}
      />
      <Field label={t("why.path")} value={fields.path ?? ""} placeholder="/" onInput={set("path")} />
      <button type="submit" class="button primary">
        {t("why.ask")}
      </button>
    </form>
  );
}
