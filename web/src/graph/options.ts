/** The graph's filters and groups. They live in the address, so that a view can be sent to somebody. */
import { computed } from "@preact/signals";
import { route, setQuery } from "../state/route.ts";
import type { Grouping, Options, Show } from "./model.ts";

const GROUPINGS: Grouping[] = ["none", "namespace", "host"];
const SHOWS: Show[] = ["all", "problems", "denied", "plaintext"];

function oneOf<T extends string>(values: readonly T[], text: string | null): T {
  return values.find((value) => value === text) ?? values[0]!;
}

export const options = computed<Options>(() => {
  const { query } = route.value;
  return {
    grouping: oneOf(GROUPINGS, query.get("group")),
    expanded: new Set(query.getAll("open").flatMap((list) => list.split(",").filter(Boolean))),
    search: query.get("q") ?? "",
    show: oneOf(SHOWS, query.get("show")),
    hideIdle: query.get("idle") === "hide",
  };
});

export const NO_FILTER: Pick<Options, "search" | "show" | "hideIdle"> = { search: "", show: "all", hideIdle: false };

export function isFiltered(o: Options): boolean {
  return o.search !== "" || o.show !== "all" || o.hideIdle;
}

export function clearFilter(): void {
  setQuery({ q: null, show: null, idle: null });
}

export function openGroup(id: string): void {
  const open = [...new Set([...options.value.expanded, id])];
  setQuery({ open: open.join(","), node: null, edge: null });
}

export function closeGroup(id: string): void {
  const open = [...options.value.expanded].filter((other) => other !== id);
  setQuery({ open: open.join(","), node: null, edge: null });
}
