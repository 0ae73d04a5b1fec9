/** Loads an answer for a page, and again with each beat of the stream; what was there stays until the new one comes. */
import { useEffect, useRef, useState } from "preact/hooks";
import { get, url } from "../api/client.ts";
import { beat } from "../state/mesh.ts";

export interface Loaded<T> {
  data: T | null;
  error: unknown;
  reload: () => void;
}

type Query = Record<string, string | number | boolean | null | undefined>;

/** `path` null loads nothing. `beats`: after so many beats (of 5 s) it loads again; 0 never. */
export function useLoad<T>(path: string | null, query: Query = {}, beats = 2): Loaded<T> {
  const target = path === null ? null : url(path, query);
  const [state, setState] = useState<{ target: string | null; data: T | null; error: unknown }>({
    target: null,
    data: null,
    error: null,
  });
  const [turn, setTurn] = useState(0);
  /** What is being asked for. A beat does not ask again: a slow controller would never come to an end. */
  const asking = useRef<{ target: string; abort: AbortController } | null>(null);
  const tick = beats > 0 ? Math.floor(beat.value / beats) : 0;
  useEffect(() => {
    if (path === null || target === null || asking.current?.target === target) return;
    asking.current?.abort.abort();
    const mine = { target, abort: new AbortController() };
    asking.current = mine;
    const done = (): boolean => {
      if (asking.current !== mine) return false;
      asking.current = null;
      return true;
    };
    get<T>(path, query, mine.abort.signal).then(
      (data) => done() && setState({ target, data, error: null }),
      (error: unknown) =>
        done() && setState((before) => ({ target, data: before.target === target ? before.data : null, error })),
    );
  }, [target, tick, turn]);
  useEffect(() => () => asking.current?.abort.abort(), []);
  const fresh = state.target === target;
  return { data: fresh ? state.data : null, error: fresh ? state.error : null, reload: () => setTurn((n) => n + 1) };
}
