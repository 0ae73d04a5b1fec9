/** A table that can be sorted by each column, whose rows open by click and by Enter. */
import type { ComponentChildren, JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { t } from "../i18n/index.ts";
import { Icon } from "./icons.tsx";

export interface Column<T> {
  id: string;
  name: string;
  render: (row: T) => ComponentChildren;
  sort?: (row: T) => string | number;
  number?: boolean;
  /** As narrow as its content. */
  narrow?: boolean;
  /** The row's name: it holds the link, and heads the row on narrow screens. */
  main?: boolean;
}

export interface Sort {
  id: string;
  down: boolean;
}

/** More rows than these are drawn in steps: a browser takes long for thousands. */
const STEP = 200;

export function sorted<T>(rows: readonly T[], column: Column<T> | undefined, down: boolean): T[] {
  const value = column?.sort;
  if (!value) return [...rows];
  const compare = (a: T, b: T) => {
    const [x, y] = [value(a), value(b)];
    return typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
  };
  return rows.toSorted((a, b) => (down ? compare(b, a) : compare(a, b)));
}

export interface TableProps<T> {
  label: string;
  rows: readonly T[];
  columns: Column<T>[];
  rowKey: (row: T) => string;
  empty: string;
  picked?: string | null;
  href?: (row: T) => string | null;
  onPick?: (row: T) => void;
  firstSort?: Sort;
}

export function Table<T>(props: TableProps<T>): JSX.Element {
  const [sort, setSort] = useState<Sort | null>(props.firstSort ?? null);
  const [shown, setShown] = useState(STEP);
  const column = props.columns.find((c) => c.id === sort?.id);
  const rows = useMemo(() => sorted(props.rows, column, sort?.down ?? false), [props.rows, sort?.id, sort?.down]);
  if (rows.length === 0) return <p class="muted table-empty">{props.empty}</p>;
  const sortBy = (id: string) => setSort({ id, down: sort?.id === id ? !sort.down : false });
  return (
    <div class="table-frame">
      <table aria-label={props.label}>
        <thead>
          <tr>
            {props.columns.map((c) => (
              <th
                key={c.id}
                scope="col"
                class={cellClass(c)}
                aria-sort={sort?.id === c.id ? (sort.down ? "descending" : "ascending") : undefined}
              >
                {c.sort && c.name ? (
                  <button type="button" onClick={() => sortBy(c.id)}>
                    {c.name}
                    {sort?.id === c.id && <span class="sort-mark" data-down={sort.down} aria-hidden="true" />}
                  </button>
                ) : (
                  c.name
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, shown).map((row) => (
            <Row key={props.rowKey(row)} row={row} table={props} />
          ))}
        </tbody>
      </table>
      {rows.length > shown && (
        <button type="button" class="button more-rows" onClick={() => setShown(shown + STEP)}>
          <Icon name="down" size={14} /> {t("graph.more", { n: rows.length - shown })}
        </button>
      )}
    </div>
  );
}

function cellClass<T>(column: Column<T>): string {
  return [column.number && "num", column.narrow && "narrow", column.main && "main"].filter(Boolean).join(" ");
}

function Row<T>({ row, table }: { row: T; table: TableProps<T> }): JSX.Element {
  const link = table.href?.(row) ?? null;
  const pick = table.onPick;
  const open = () => {
    if (pick) pick(row);
    else if (link) location.hash = link;
  };
  const able = Boolean(pick || link);
  const content = (c: Column<T>) => {
    if (!c.main || !able) return c.render(row);
    if (link) return <a href={link}>{c.render(row)}</a>;
    return (
      <button type="button" class="link" onClick={open}>
        {c.render(row)}
      </button>
    );
  };
  return (
    <tr
      class={[able && "able", table.picked === table.rowKey(row) && "picked"].filter(Boolean).join(" ")}
      onClick={(event) => {
        if (able && !(event.target as Element).closest("a, button")) open();
      }}
    >
      {table.columns.map((c) => (
        <td key={c.id} class={cellClass(c)} data-name={c.name}>
          {content(c)}
        </td>
      ))}
    </tr>
  );
}
