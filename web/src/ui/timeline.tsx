/** The last 15 minutes as a strip: changes as marks, and a moment that can be picked by mouse and by keys. */
import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import type { Mark } from "../api/types.ts";
import { clock, t, word } from "../i18n/index.ts";
import { HISTORY, live, marks } from "../state/mesh.ts";
import { at, lookAt, now, since } from "../state/time.ts";
import { IconButton } from "./basics.tsx";

const share = (moment: number, end: number) => Math.min(1, Math.max(0, 1 - (end - moment) / HISTORY));
/** Marks so close together (as a share of the strip) are one. */
const NEAR = 0.012;

export interface Cluster {
  at: number;
  x: number;
  marks: Mark[];
}

export function clustered(all: readonly Mark[], end: number): Cluster[] {
  const clusters: Cluster[] = [];
  for (const mark of all) {
    if (mark.at < end - HISTORY || mark.at > end + 5) continue;
    const x = share(mark.at, end);
    const before = clusters[clusters.length - 1];
    if (before && x - before.x < NEAR) before.marks.push(mark);
    else clusters.push({ at: mark.at, x, marks: [mark] });
  }
  return clusters;
}

export function markText(mark: Mark): string {
  const what = `${mark.what} ${word("mark", mark.verb)}`;
  return mark.who ? `${what} ${t("mark.by", { who: mark.who })}` : what;
}

const KINDS: Mark["kind"][] = ["object", "controller", "proxy"];
const tone = (cluster: Cluster) =>
  cluster.marks.some((m) => m.verb === "refused" || m.verb === "gone")
    ? "error"
    : (KINDS.find((kind) => cluster.marks.some((m) => m.kind === kind)) ?? "proxy");

export function Timeline(): JSX.Element | null {
  const strip = useRef<HTMLDivElement>(null);
  if (live.value.at === 0) return null;
  const end = now.value;
  const moment = at.value;
  const clusters = clustered(marks.value, end);
  const place = moment ?? end;
  const momentOf = (event: MouseEvent): number => {
    const box = strip.current!.getBoundingClientRect();
    return end - HISTORY * (1 - Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowLeft: -5, ArrowRight: 5, PageDown: -60, PageUp: 60 };
    const step = steps[event.key];
    if (step) lookAt(place + step >= end ? null : place + step);
    else if (event.key === "Home") lookAt(since.value);
    else if (event.key === "End" || event.key === "Escape") lookAt(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <section class="timeline" aria-label={t("time.line")}>
      <div class="strip" ref={strip}>
        <div
          class="strip-slider"
          role="slider"
          tabIndex={0}
          aria-label={t("time.moment")}
          aria-valuemin={Math.round(since.value)}
          aria-valuemax={Math.round(end)}
          aria-valuenow={Math.round(place)}
          aria-valuetext={moment === null ? t("time.now") : clock(moment)}
          onKeyDown={onKeyDown}
          onClick={(event) => {
            const picked = momentOf(event);
            lookAt(picked > end - 4 ? null : picked);
          }}
        />
        <svg class="strip-lines" width="100%" height="100%" aria-hidden="true">
          <rect class="strip-before" x="0" y="0" width={`${share(since.value, end) * 100}%`} height="100%" />
          {[3, 6, 9, 12].map((minutes) => (
            <g key={minutes}>
              <line
                class="strip-tick"
                x1={`${100 - minutes / 0.15}%`}
                x2={`${100 - minutes / 0.15}%`}
                y1="0"
                y2="100%"
              />
              <text class="strip-text" x={`${100 - minutes / 0.15}%`} dx="5" y="13">
                {clock(end - minutes * 60).slice(0, 5)}
              </text>
            </g>
          ))}
          <line
            class="strip-hand"
            x1={`${share(place, end) * 100}%`}
            x2={`${share(place, end) * 100}%`}
            y1="0"
            y2="100%"
          />
        </svg>
        {clusters.map((cluster, i) => (
          <MarkButton key={cluster.at} cluster={cluster} newest={i === clusters.length - 1} />
        ))}
      </div>
      <button type="button" class="now-button" aria-pressed={moment === null} onClick={() => lookAt(null)}>
        <span class="now-dot" aria-hidden="true" />
        {moment === null ? t("time.now") : clock(moment)}
      </button>
      {moment !== null && <IconButton icon="close" label={t("banner.backToNow")} onClick={() => lookAt(null)} />}
    </section>
  );
}

/** Most telling first: a change of an object is easily lost among proxies that connect. */
function byKind(marks: readonly Mark[]): Mark[] {
  return marks.toSorted((a, b) => KINDS.indexOf(a.kind) - KINDS.indexOf(b.kind) || a.at - b.at);
}

/** Left and right move among marks, which are one stop of the Tab key. */
function moveAmongMarks(event: KeyboardEvent): void {
  const mark = event.currentTarget as HTMLElement;
  const marks = [...(mark.parentElement?.querySelectorAll<HTMLElement>(".mark") ?? [])];
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  marks[marks.indexOf(mark) + step]?.focus();
}

const TOLD = 6;

function MarkButton({ cluster, newest }: { cluster: Cluster; newest: boolean }): JSX.Element {
  const told = byKind(cluster.marks);
  const text = `${clock(cluster.at)} ${told.slice(0, TOLD).map(markText).join("; ")}`;
  const count = cluster.marks.length;
  return (
    <button
      type="button"
      class={`mark mark-${tone(cluster)}`}
      // Through the CSSOM: the page's policy forbids style attributes.
      style={{ left: `${cluster.x * 100}%` }}
      aria-label={text}
      tabIndex={newest ? 0 : -1}
      onKeyDown={moveAmongMarks}
      onClick={() => lookAt(told[0]?.at ?? cluster.at)}
    >
      {count > 1 && <span aria-hidden="true">{count > 9 ? "+" : count}</span>}
      <span class={`mark-tip ${cluster.x > 0.6 ? "tip-left" : ""}`} aria-hidden="true">
        <b>{clock(cluster.at)}</b>
        {told.slice(0, TOLD).map((mark) => (
          <span key={`${mark.at}${mark.what}${mark.verb}`}>{markText(mark)}</span>
        ))}
        {count > TOLD && <span class="muted">{t("graph.more", { n: count - TOLD })}</span>}
      </span>
    </button>
  );
}
