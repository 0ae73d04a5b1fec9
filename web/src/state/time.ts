/** The moment that is looked at, and the window before it. */
import { computed } from "@preact/signals";
import { HISTORY, live } from "./mesh.ts";
import { go, route, setQuery } from "./route.ts";

export const WINDOWS = [30, 60, 300, 900] as const;

/** A moment in the past, or null for now. It is part of the address, so that it can be sent to somebody. */
export const at = computed<number | null>(() => {
  const text = Number(route.value.query.get("at"));
  return Number.isFinite(text) && text > 0 ? text : null;
});

export const window_ = computed<number>(() => {
  const asked = Number(route.value.query.get("window"));
  return WINDOWS.find((w) => w === asked) ?? 60;
});

/** The controller's clock, as of its last word, so that a browser's wrong clock does no harm. */
export const now = computed(() => live.value.at || Date.now() / 1000);

/** Where there is something to look at: the history's begin, at most 15 minutes ago. */
export const since = computed(() => Math.max(now.value - HISTORY, live.value.coverage.since || 0));

/** Pages that can show a moment in the past. */
export const PAST_PAGES = new Set(["graph", "why"]);

/** Shows a moment, or now. From a page that knows only the present it leads to the graph. */
export function lookAt(moment: number | null): void {
  const inside = moment === null ? null : Math.floor(Math.min(now.value, Math.max(since.value, moment)));
  const fields = { at: inside === null ? null : String(inside) };
  if (moment === null || PAST_PAGES.has(route.value.parts[0]!)) setQuery(fields);
  else go(["graph"], fields);
}
