/** JSON as a tree that opens and closes, with a filter by name. Long lists open in steps. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { t } from "../i18n/index.ts";
import { CopyButton } from "./basics.tsx";
import { SearchField } from "./fields.tsx";

type Json = unknown;
const isTree = (value: Json): value is Record<string, Json> | Json[] => typeof value === "object" && value !== null;

/** The parts of a value in which a name or text contains the words; undefined: none. */
export function pruned(value: Json, words: string): Json {
  if (words === "") return value;
  if (!isTree(value)) return String(value).toLowerCase().includes(words) ? value : undefined;
  const kept = Object.entries(value).flatMap(([name, child]): [string, Json][] => {
    if (!Array.isArray(value) && name.toLowerCase().includes(words)) return [[name, child]];
    const part = pruned(child, words);
    return part === undefined ? [] : [[name, part]];
  });
  if (kept.length === 0) return undefined;
  return Array.isArray(value) ? kept.map(([, child]) => child) : Object.fromEntries(kept);
}

export function JsonView({ value }: { value: Json }): JSX.Element {
  const [words, setWords] = useState("");
  const shown = pruned(value, words.trim().toLowerCase());
  return (
    <div class="json">
      <div class="json-tools">
        <SearchField label={t("proxies.filterConfig")} value={words} onInput={setWords} />
        <CopyButton text={JSON.stringify(value, null, 2)} />
      </div>
      {shown === undefined ? (
        <p class="muted">{t("graph.noMatch")}</p>
      ) : (
        <Branch value={shown} depth={0} open={words !== ""} />
      )}
    </div>
  );
}

const STEP = 100;

function Branch({ value, depth, open }: { value: Json; depth: number; open: boolean }): JSX.Element {
  const [shown, setShown] = useState(STEP);
  if (!isTree(value)) return <Scalar value={value} />;
  const entries = Object.entries(value);
  const list = Array.isArray(value);
  return (
    <ul class="json-tree">
      {entries.slice(0, shown).map(([name, child]) => (
        <li key={name}>
          {isTree(child) && Object.keys(child).length > 0 ? (
            <details open={open || depth < 1}>
              <summary>
                <span class="json-name">{list ? label(child, name) : name}</span>
                <span class="muted"> {Array.isArray(child) ? `[${child.length}]` : ""}</span>
              </summary>
              <Branch value={child} depth={depth + 1} open={open} />
            </details>
          ) : (
            <p>
              <span class="json-name">{name}</span>: <Scalar value={child} />
            </p>
          )}
        </li>
      ))}
      {entries.length > shown && (
        <li>
          <button type="button" class="link" onClick={() => setShown(shown + STEP)}>
            {t("graph.more", { n: entries.length - shown })}
          </button>
        </li>
      )}
    </ul>
  );
}

/** An item of a list is known by its name, if it has one. */
function label(value: Json, index: string): string {
  const name = isTree(value) && !Array.isArray(value) ? (value.name ?? value.id) : undefined;
  return typeof name === "string" ? name : index;
}

function Scalar({ value }: { value: Json }): JSX.Element {
  const kind = value === null ? "null" : typeof value;
  return (
    <span class={`json-${kind}`}>{isTree(value) ? (Array.isArray(value) ? "[]" : "{}") : JSON.stringify(value)}</span>
  );
}
