/** Requests as they complete, with filters. The list keeps the newest lines only. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { url } from "../api/client.ts";
import type { TapLine } from "../api/types.ts";
import { milliseconds, t } from "../i18n/index.ts";
import { live } from "../state/mesh.ts";
import { route } from "../state/route.ts";
import { Badge, Facts, Identity } from "./basics.tsx";
import { Explanation } from "./errors.tsx";
import { Field, Select } from "./fields.tsx";
import { Icon } from "./icons.tsx";

const KEPT = 300;
/** Lines are drawn in batches: a busy mesh sends hundreds a second. */
const BATCH_MS = 250;

export interface TapFilter {
  source?: string;
  destination?: string;
  path?: string;
  method?: string;
  status?: string;
  failed?: boolean;
}

type State = "idle" | "running" | "ended";
type Row = TapLine & { key: number };

interface Tapped {
  rows: Row[];
  count: number;
  dropped: number;
  state: State;
  start: (filter: TapFilter) => void;
  stop: () => void;
  clear: () => void;
}

function useTap(): Tapped {
  const [shown, setShown] = useState<{ rows: Row[]; count: number }>({ rows: [], count: 0 });
  const [dropped, setDropped] = useState(0);
  const [state, setState] = useState<State>("idle");
  const source = useRef<EventSource | null>(null);
  const waiting = useRef<Row[]>([]);
  const key = useRef(0);
  const end = (to: State) => {
    source.current?.close();
    source.current = null;
    setState(to);
  };
  useEffect(() => () => source.current?.close(), []);
  useEffect(() => {
    const timer = setInterval(() => {
      const batch = waiting.current.splice(0);
      if (batch.length === 0) return;
      setShown(({ rows, count }) => ({
        rows: [...batch.reverse(), ...rows].slice(0, KEPT),
        count: count + batch.length,
      }));
    }, BATCH_MS);
    return () => clearInterval(timer);
  }, []);
  const start = (filter: TapFilter) => {
    end("running");
    const events = new EventSource(url("tap", { ...filter }));
    source.current = events;
    events.addEventListener("request", ({ data }) => {
      key.current += 1;
      waiting.current.push({ ...(JSON.parse(data as string) as TapLine), key: key.current });
      if (waiting.current.length > KEPT) waiting.current.shift();
    });
    events.addEventListener("dropped", ({ data }) =>
      setDropped((n) => n + (JSON.parse(data as string) as { count: number }).count),
    );
    events.addEventListener("end", () => end("ended"));
    events.onerror = () => end("ended");
  };
  const clear = () => {
    waiting.current = [];
    setShown({ rows: [], count: 0 });
    setDropped(0);
  };
  return { ...shown, dropped, state, start, stop: () => end("idle"), clear };
}

export function Tap({ fixed = {} }: { fixed?: TapFilter }): JSX.Element {
  const query = route.value.query;
  const [filter, setFilter] = useState<TapFilter>({
    source: query.get("source") ?? "",
    destination: query.get("destination") ?? "",
    ...fixed,
  });
  const tap = useTap();
  const set = (name: keyof TapFilter) => (value: string) => setFilter((before) => ({ ...before, [name]: value }));
  const names = [...live.value.nodes.keys()].sort();
  const running = tap.state === "running";
  return (
    <div class="tap">
      <form
        class="tap-form"
        onSubmit={(event) => {
          event.preventDefault();
          if (running) tap.stop();
          else tap.start(filter);
        }}
      >
        <Field
          label={t("tap.source")}
          value={filter.source ?? ""}
          list={names}
          placeholder={t("tap.any")}
          onInput={set("source")}
        />
        <Field
          label={t("tap.destination")}
          value={filter.destination ?? ""}
          list={names}
          placeholder={t("tap.any")}
          onInput={set("destination")}
        />
        <Field label={t("tap.path")} value={filter.path ?? ""} placeholder="/" onInput={set("path")} />
        <Select
          label={t("tap.method")}
          visibleLabel
          value={filter.method ?? ""}
          choices={["", "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"].map((value) => ({
            value,
            label: value || t("tap.any"),
          }))}
          onPick={set("method")}
        />
        <Field
          label={t("tap.status")}
          value={filter.status ?? ""}
          placeholder={t("tap.any")}
          inputMode="numeric"
          onInput={set("status")}
        />
        <label class="check">
          <input
            type="checkbox"
            checked={filter.failed ?? false}
            onChange={(event) => setFilter({ ...filter, failed: event.currentTarget.checked })}
          />
          {t("tap.failed")}
        </label>
        <button type="submit" class={`button ${running ? "" : "primary"}`}>
          <Icon name={running ? "stop" : "play"} size={14} /> {t(running ? "tap.stop" : "tap.start")}
        </button>
        <button type="button" class="button" onClick={tap.clear}>
          {t("tap.clear")}
        </button>
      </form>
      <p class="muted" role="status">
        {tap.count > 0 && `${t("tap.lines", { n: tap.count })}. `}
        {tap.dropped > 0 && `${t("tap.dropped", { n: tap.dropped })} `}
        {tap.state === "ended"
          ? t("tap.ended")
          : running
            ? tap.count === 0 && t("tap.waiting")
            : tap.count === 0 && t("tap.idle")}
      </p>
      {tap.rows.length > 0 && <Lines rows={tap.rows} />}
    </div>
  );
}

const text = (line: TapLine, name: string) => {
  const value = line[name];
  return value === undefined || value === null || value === "-" ? "" : String(value);
};

function Lines({ rows }: { rows: Row[] }): JSX.Element {
  const [open, setOpen] = useState<number | null>(null);
  return (
    <ol class="tap-lines">
      {rows.map((line) => {
        const status = Number(line.response_code ?? 0);
        const reason = text(line, "response_flags");
        const bad = status >= 500 || (reason !== "" && status >= 400);
        return (
          <li key={line.key}>
            <button
              type="button"
              class="tap-line"
              aria-expanded={open === line.key}
              onClick={() => setOpen(open === line.key ? null : line.key)}
            >
              <span class="muted">{text(line, "start_time").slice(11, 23)}</span>
              <Badge tone={bad ? "error" : status >= 400 ? "warning" : "ok"}>{status || "TCP"}</Badge>
              <span class="tap-call">
                <Identity id={text(line, "source_principal") || "–"} /> → <span>{text(line, "upstream_cluster")}</span>
              </span>
              <span class="mono tap-path">
                {text(line, "method")} {text(line, "path")}
              </span>
              <span class="num">{milliseconds(Number(line.duration ?? 0))}</span>
              <span>{reason && <Badge tone="error">{reason}</Badge>}</span>
            </button>
            {open === line.key && (
              <div class="tap-detail">
                {reason && <Explanation code={reason} />}
                <Facts
                  rows={Object.entries(line)
                    .filter(([name]) => name !== "key")
                    .map(([name, value]) => [name, value === null ? "" : String(value)])}
                />
              </div>
            )}
          </li>
        );
      })}
    </ol>
  );
}
