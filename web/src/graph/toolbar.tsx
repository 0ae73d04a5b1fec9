/** Filters, groups and window of the graph. */
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { type TextKey, t } from "../i18n/index.ts";
import { setQuery } from "../state/route.ts";
import { WINDOWS, window_ } from "../state/time.ts";
import { SearchField, Segments, Select } from "../ui/fields.tsx";
import type { Drawn, Grouping, Show } from "./model.ts";
import { options } from "./options.ts";

const GROUPS: Grouping[] = ["none", "namespace", "host"];
const SHOWS: Show[] = ["all", "problems", "denied", "plaintext"];

export function Toolbar({ drawn }: { drawn: Drawn }): JSX.Element {
  const chosen = options.value;
  const search = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const typing = (event.target as Element).matches?.("input, textarea, select");
      if (event.key !== "/" || typing || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      search.current?.focus();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const asList = new URLSearchParams(location.hash.split("?")[1] ?? "").get("view") === "list";
  return (
    <search class="toolbar">
      <SearchField
        label={t("graph.search")}
        value={chosen.search}
        hint="/"
        inputRef={search}
        onInput={(q) => setQuery({ q }, true)}
      />
      <Select
        label={t("graph.show")}
        value={chosen.show}
        choices={SHOWS.map((value) => ({ value, label: t(`graph.show.${value}` as TextKey) }))}
        onPick={(show) => setQuery({ show: show === "all" ? null : show })}
      />
      <Select
        label={t("graph.group")}
        value={drawn.collapsed ? drawn.grouping : chosen.grouping}
        choices={GROUPS.filter((value) => value !== "none" || !drawn.collapsed).map((value) => ({
          value,
          label: t(`graph.group.${value}` as TextKey),
        }))}
        onPick={(group) => setQuery({ group: group === "none" ? null : group, open: null })}
      />
      <Select
        label={t("graph.window")}
        value={String(window_.value)}
        choices={WINDOWS.map((value) => ({ value: String(value), label: t(`window.${value}` as TextKey) }))}
        onPick={(window) => setQuery({ window: window === "60" ? null : window })}
      />
      <label class="check">
        <input
          type="checkbox"
          checked={chosen.hideIdle}
          onChange={(event) => setQuery({ idle: event.currentTarget.checked ? "hide" : null })}
        />
        {t("graph.hideIdle")}
      </label>
      <span class="toolbar-space" />
      {drawn.collapsed && drawn.boxes.length === 0 && (
        <span class="muted toolbar-hint">{t("graph.collapsed", { n: drawn.matching })}</span>
      )}
      {drawn.matching < drawn.total && (
        <span class="muted matching" role="status">
          {t("app.of", { n: drawn.matching, all: drawn.total })}
        </span>
      )}
      <Segments
        label={t("graph.view")}
        value={asList ? "list" : "graph"}
        choices={[
          { value: "graph", label: t("graph.asGraph") },
          { value: "list", label: t("graph.asList") },
        ]}
        onPick={(view) => setQuery({ view: view === "list" ? "list" : null })}
      />
    </search>
  );
}
