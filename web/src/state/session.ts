/** The first visit: the address has a one-time code, which is exchanged for a session and then removed from it. */
import { signal } from "@preact/signals";
import { ApiError, post } from "../api/client.ts";
import { parse, route } from "./route.ts";

/** Why the code was not accepted; empty: it was, or there was none. */
export const codeRefused = signal("");

/** Returns the one-time code of an address, or null. */
export function codeOf(hash: string): string | null {
  return /^#code=([\w~.-]+)$/.exec(hash)?.[1] ?? null;
}

export async function exchangeCode(): Promise<void> {
  const code = codeOf(location.hash);
  if (code === null) return;
  // Removed first: whatever comes of it, the code shall not stay in the address or the browser's history.
  history.replaceState(null, "", `${location.pathname}#/graph`);
  route.value = parse(location.hash);
  try {
    await post("session", { code });
    codeRefused.value = "";
  } catch (error) {
    if (error instanceof ApiError) codeRefused.value = error.message;
  }
}

/** A new address pasted into a tab that is open only changes what is behind the `#`. */
export function followCodes(then: () => void): void {
  addEventListener("hashchange", () => {
    if (codeOf(location.hash) !== null) void exchangeCode().then(then);
  });
}
