/** The page's address: `#/path?query`. The controller never sees it. */
import { signal } from "@preact/signals";

export interface Route {
  /** Parts of the path, decoded; the first names the page. */
  parts: string[];
  query: URLSearchParams;
}

export function parse(hash: string): Route {
  const text = hash.replace(/^#\/?/, "");
  const [path = "", query = ""] = text.split(/\?(.*)/s);
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts: parts.length ? parts : ["graph"], query: new URLSearchParams(query) };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const route = signal<Route>(parse(location.hash));

export function listen(): void {
  addEventListener("hashchange", () => {
    // A one-time code is no page.
    if (!location.hash.startsWith("#code=")) route.value = parse(location.hash);
  });
}

type Fields = Record<string, string | null | undefined>;

/** Returns the address of a page, for links. */
export function href(parts: string[], fields: Fields = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(fields)) if (value) query.set(name, value);
  const text = query.toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function go(parts: string[], fields: Fields = {}): void {
  location.hash = href(parts, fields);
}

/** Changes fields of the query and stays on the page; `replace` leaves no step in the history. */
export function setQuery(fields: Fields, replace = false): void {
  const { parts, query } = route.value;
  const merged: Fields = Object.fromEntries(query);
  Object.assign(merged, fields);
  const target = href(parts, merged);
  if (replace) {
    history.replaceState(null, "", target);
    route.value = parse(target);
  } else {
    location.hash = target;
  }
}

/** The page of a node of the graph, or null for what has none. */
export function nodeHref(id: string): string | null {
  return /^(service|gateway|workload)\//.test(id) ? href(["services", id]) : null;
}

export function objectHref(object: { kind: string; name: string; namespace?: string | null }): string {
  return href(["object"], { kind: object.kind, name: object.name, namespace: object.namespace ?? null });
}
