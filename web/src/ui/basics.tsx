/** Small parts that all pages are made of. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, Offline } from "../api/client.ts";
import type { Health } from "../api/types.ts";
import { t, word } from "../i18n/index.ts";
import { Icon, type IconName } from "./icons.tsx";

export type Tone = Health | "accent" | "denied";

export function HealthMark({ health, label = false }: { health: Health; label?: boolean }): JSX.Element {
  const text = word("health", health);
  return (
    <span class={`health health-${health}`}>
      <span class="health-dot" aria-hidden="true" />
      <span class={label ? "" : "hidden"}>{text}</span>
    </span>
  );
}

export function Badge({ tone = "idle", children }: { tone?: Tone; children: ComponentChildren }): JSX.Element {
  return <span class={`badge badge-${tone}`}>{children}</span>;
}

export function IconButton(props: {
  icon: IconName;
  label: string;
  onClick: () => void;
  pressed?: boolean;
}): JSX.Element {
  return (
    <button
      type="button"
      class="icon-button"
      aria-label={props.label}
      title={props.label}
      aria-pressed={props.pressed}
      onClick={props.onClick}
    >
      <Icon name={props.icon} />
    </button>
  );
}

export function Loading(): JSX.Element {
  return (
    <p class="loading" role="status">
      {t("app.loading")}
    </p>
  );
}

export function Empty({ title, hint, children }: { title: string; hint?: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {hint && <p>{hint}</p>}
      {children}
    </div>
  );
}

/** What went wrong, and what helps. Being offline is told by the banner. */
export function Failure({ error, again }: { error: unknown; again?: () => void }): JSX.Element | null {
  if (error instanceof Offline) return null;
  const message = error instanceof Error ? error.message : String(error);
  const fix = error instanceof ApiError ? error.fix : "";
  return (
    <div class="failure" role="alert">
      <p class="failure-title">{t("fail.title")}</p>
      <p>{message}</p>
      {fix && <p class="muted">{fix}</p>}
      {again && (
        <button type="button" class="button" onClick={again}>
          {t("app.retry")}
        </button>
      )}
    </div>
  );
}

/** Names and values. Rows without a value are left out. */
export function Facts({ rows }: { rows: [string, ComponentChildren][] }): JSX.Element {
  return (
    <dl class="facts">
      {rows
        .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

export function Section({ title, count, children }: { title: string; count?: number; children: ComponentChildren }) {
  return (
    <section class="section">
      <h2>
        {title}
        {count !== undefined && <span class="count">{count}</span>}
      </h2>
      {children}
    </section>
  );
}

export interface Tab {
  id: string;
  label: string;
  badge?: number;
}

/** Tabs by the ARIA pattern: arrows move, the tab list is one stop for the Tab key. */
export function Tabs(props: { tabs: Tab[]; current: string; onPick: (id: string) => void; label: string }) {
  const list = useRef<HTMLDivElement>(null);
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const index = props.tabs.findIndex((tab) => tab.id === props.current);
    const next = props.tabs[(index + step + props.tabs.length) % props.tabs.length]!;
    props.onPick(next.id);
    list.current?.querySelector<HTMLElement>(`[data-tab="${next.id}"]`)?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={props.label} ref={list} onKeyDown={onKeyDown}>
      {props.tabs.map((tab) => (
        <button
          key={tab.id}
          type="button"
          role="tab"
          data-tab={tab.id}
          aria-selected={tab.id === props.current}
          tabIndex={tab.id === props.current ? 0 : -1}
          onClick={() => props.onPick(tab.id)}
        >
          {tab.label}
          {tab.badge ? <span class="count">{tab.badge}</span> : null}
        </button>
      ))}
    </div>
  );
}

/** Text that can be copied as a whole, such as an identity or a manifest. */
export function CopyButton({ text }: { text: string }): JSX.Element {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = () => navigator.clipboard?.writeText(text).then(() => setCopied(true));
  return (
    <button type="button" class="icon-button" onClick={copy} aria-label={t("app.copy")} title={t("app.copy")}>
      <Icon name={copied ? "check" : "copy"} />
      <span class="hidden" role="status">
        {copied ? t("app.copied") : ""}
      </span>
    </button>
  );
}

/** An identity without its trust domain, which is the same everywhere; the whole is in the title. */
export function Identity({ id }: { id: string }): JSX.Element {
  return (
    <span class="identity" title={id}>
      {id.replace(/^spiffe:\/\/[^/]+\//, "")}
    </span>
  );
}
