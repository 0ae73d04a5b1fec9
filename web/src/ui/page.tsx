/** The head of a page: its title, a way back, and a filter over its rows. */
import type { ComponentChildren, JSX } from "preact";
import { t } from "../i18n/index.ts";
import { route, setQuery } from "../state/route.ts";
import { SearchField } from "./fields.tsx";

export interface PageProps<T> {
  title: ComponentChildren;
  count?: number | undefined;
  intro?: ComponentChildren;
  back?: { href: string; text: string };
  tools?: ComponentChildren;
  rows?: readonly T[];
  /** The text of a row that the filter looks into; without it there is no filter. */
  filter?: (row: T) => string;
  children: ComponentChildren | ((rows: readonly T[]) => ComponentChildren);
}

export function Page<T>(props: PageProps<T>): JSX.Element {
  const text = route.value.query.get("q") ?? "";
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const all = props.rows ?? [];
  const filter = props.filter;
  const rows =
    filter && words.length ? all.filter((row) => words.every((w) => filter(row).toLowerCase().includes(w))) : all;
  return (
    <div class="page">
      {props.back && (
        <a class="back" href={props.back.href}>
          ← {props.back.text}
        </a>
      )}
      <div class="page-head">
        <h1>
          {props.title}
          {props.count !== undefined && <span class="count">{props.count}</span>}
        </h1>
        <div class="page-tools">
          {filter && <SearchField label={t("app.search")} value={text} onInput={(q) => setQuery({ q }, true)} />}
          {props.tools}
        </div>
      </div>
      {props.intro && <p class="intro muted">{props.intro}</p>}
      {typeof props.children === "function" ? props.children(rows) : props.children}
    </div>
  );
}
