/** What changed between two times, edge by edge. */
import type { JSX } from "preact";
import type { Compared, Edge } from "../api/types.ts";
import { endName } from "../graph/edge-list.tsx";
import { clock, milliseconds, percent, rate, t } from "../i18n/index.ts";
import { live, marks } from "../state/mesh.ts";
import { href, route, setQuery } from "../state/route.ts";
import { now, since } from "../state/time.ts";
import { Badge, Failure, HealthMark, Loading, Section } from "../ui/basics.tsx";
import { useLoad } from "../ui/load.ts";
import { Page } from "../ui/page.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { markText } from "../ui/timeline.tsx";

const WINDOW = 60;

type Better = "up" | "down" | "none";

/** Two values with an arrow between, coloured by whether the change is for the better. */
function Change(props: {
  before: number | null | undefined;
  after: number | null | undefined;
  format: (v: number | null) => string;
  better: Better;
}) {
  const { before, after, format, better } = props;
  if (before === undefined || before === null)
    return <>{after === undefined || after === null ? "–" : format(after)}</>;
  if (after === undefined || after === null) return <span class="muted">{format(before)}</span>;
  const same = format(before) === format(after);
  const good = better === "none" || same ? "" : after > before === (better === "up") ? "text-ok" : "text-error";
  return same ? (
    format(after)
  ) : (
    <span class="change">
      <span class="muted">{format(before)}</span> <span aria-hidden="true">→</span> <b class={good}>{format(after)}</b>
    </span>
  );
}

function columns(): Column<Compared>[] {
  const of = (c: Compared) => (c.after ?? c.before)!;
  const value = (name: keyof Edge, format: (v: number | null) => string, better: Better) => (c: Compared) => (
    <Change
      before={c.before?.[name] as number | null}
      after={c.after?.[name] as number | null}
      format={format}
      better={better}
    />
  );
  const shown = (f: (v: number) => string) => (v: number | null) => (v === null ? "–" : f(v));
  return [
    { id: "health", name: "", render: (c) => <HealthMark health={of(c).health} />, narrow: true },
    {
      id: "call",
      name: t("compare.call"),
      main: true,
      render: (c) => `${endName(of(c).source, live.value)} → ${endName(of(c).destination, live.value)}`,
      sort: (c) => c.id,
    },
    {
      id: "what",
      name: "",
      render: (c) =>
        c.before === null ? (
          <Badge tone="accent">{t("compare.new")}</Badge>
        ) : c.after === null ? (
          <Badge>{t("compare.gone")}</Badge>
        ) : (
          ""
        ),
    },
    {
      id: "rate",
      name: t("edge.rate"),
      render: value("rate", shown(rate), "none"),
      sort: (c) => (c.after?.rate ?? 0) - (c.before?.rate ?? 0),
      number: true,
    },
    {
      id: "success",
      name: t("edge.success"),
      render: value("success", percent, "up"),
      sort: (c) => (c.after?.success ?? 1) - (c.before?.success ?? 1),
      number: true,
    },
    {
      id: "denied",
      name: t("edge.denied"),
      render: value("denied", shown(rate), "down"),
      sort: (c) => (c.after?.denied ?? 0) - (c.before?.denied ?? 0),
      number: true,
    },
    {
      id: "p50",
      name: "P50",
      render: value("p50", milliseconds, "down"),
      sort: (c) => (c.after?.p50 ?? 0) - (c.before?.p50 ?? 0),
      number: true,
    },
    {
      id: "p99",
      name: "P99",
      render: value("p99", milliseconds, "down"),
      sort: (c) => (c.after?.p99 ?? 0) - (c.before?.p99 ?? 0),
      number: true,
    },
  ];
}

export function ComparePage(): JSX.Element {
  const { query } = route.value;
  const asked = (name: string) => Number(query.get(name)) || null;
  const end = Math.floor(now.value);
  const after = asked("after") ?? end;
  const before = asked("before") ?? Math.max(Math.ceil(since.value) + WINDOW, end - 300);
  // Proxies come and go; what somebody changed is what is looked for.
  const changes = marks.value.filter(
    (mark) => mark.kind !== "proxy" || mark.verb === "refused" || mark.verb === "gone",
  );
  const known = live.value.at > 0;
  // Without a fixed end the comparison is of now, and is asked for again with each beat.
  const { data, error, reload } = useLoad<{ edges: Compared[] }>(
    known ? "compare" : null,
    { before, after, window: WINDOW },
    0,
  );
  return (
    <Page title={t("compare.title")} intro={t("compare.intro", { window: t("window.60") })}>
      <div class="compare-times">
        <Moment label={t("compare.before")} value={before} onPick={(v) => setQuery({ before: String(v) }, true)} />
        <Moment label={t("compare.after")} value={after} onPick={(v) => setQuery({ after: String(v) }, true)} />
      </div>
      <Section title={t("compare.pick")}>
        {changes.length === 0 && <p class="muted">{t("compare.noMarks")}</p>}
        <ul class="chips">
          {changes.slice(-12).map((mark) => (
            <li key={`${mark.at}${mark.what}${mark.verb}`}>
              <button
                type="button"
                onClick={() =>
                  setQuery({
                    before: String(Math.floor(mark.at)),
                    after: String(Math.min(end, Math.ceil(mark.at) + WINDOW + 5)),
                  })
                }
              >
                <span class="muted">{clock(mark.at)}</span> {markText(mark)}
              </button>
            </li>
          ))}
        </ul>
      </Section>
      {error ? <Failure error={error} again={reload} /> : null}
      {!data && !error && <Loading />}
      {data && (
        <Section title={t("compare.changed")} count={data.edges.length}>
          <Table
            label={t("compare.changed")}
            rows={data.edges}
            columns={columns()}
            rowKey={(c) => c.id}
            href={(c) => href(["graph"], { edge: c.id })}
            empty={t("compare.none")}
          />
        </Section>
      )}
    </Page>
  );
}

function Moment({
  label,
  value,
  onPick,
}: {
  label: string;
  value: number;
  onPick: (value: number) => void;
}): JSX.Element {
  return (
    <label class="moment">
      <span class="field-label">{label}</span>
      <input
        type="range"
        min={Math.ceil(since.value)}
        max={Math.floor(now.value)}
        step={5}
        value={value}
        aria-valuetext={clock(value)}
        onChange={(event) => onPick(Number(event.currentTarget.value))}
      />
      <output>{clock(value)}</output>
    </label>
  );
}
