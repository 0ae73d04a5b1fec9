/** Lines over time, drawn by uPlot in the page's colours. What is drawn is also said in words. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { clock, t } from "../i18n/index.ts";
import { dark } from "../state/prefs.ts";

export interface Line {
  label: string;
  /** Name of a colour of the design: `accent`, `ok`, `warning`, `error`, `denied`. */
  tone: string;
  values: readonly (number | null)[];
  fill?: boolean;
}

export interface ChartProps {
  title: string;
  from: number;
  step: number;
  lines: Line[];
  format: (value: number) => string;
  height?: number;
}

const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function config(props: ChartProps, width: number, onCursor: (index: number | null) => void): uPlot.Options {
  const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
  const font = `11px ${colour("sans")}`;
  return {
    width,
    height: props.height ?? 130,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.12 : 1] } },
    axes: [
      { ...axis, font, size: 26, space: 70, values: (_, at) => at.map((time) => clock(time).slice(0, 5)) },
      { ...axis, font, size: 58, space: 34, values: (_, at) => at.map((value) => props.format(value)) },
    ],
    series: [
      {},
      ...props.lines.map((line) => ({
        label: line.label,
        stroke: colour(line.tone),
        width: 1.6,
        points: { show: false },
        ...(line.fill ? { fill: `${colour(line.tone)}1f` } : {}),
      })),
    ],
    hooks: { setCursor: [(plot) => onCursor(plot.cursor.idx ?? null)] },
  };
}

function table(props: ChartProps): uPlot.AlignedData {
  const length = Math.max(0, ...props.lines.map((line) => line.values.length));
  const times = Array.from({ length }, (_, i) => props.from + i * props.step);
  return [times, ...props.lines.map((line) => [...line.values])] as uPlot.AlignedData;
}

function last(values: readonly (number | null)[]): number | null {
  return values.findLast((value) => value !== null) ?? null;
}

export function Chart(props: ChartProps): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [index, setIndex] = useState<number | null>(null);
  const shape = `${dark.value}|${props.lines.map((line) => line.label + line.tone).join()}`;
  const some = props.lines.some((line) => line.values.some((value) => value !== null));

  useEffect(() => {
    const element = place.current;
    if (!element || !some) return;
    plot.current = new uPlot(config(props, element.clientWidth || 300, setIndex), table(props), element);
    const observer = new ResizeObserver(() => {
      plot.current?.setSize({ width: element.clientWidth, height: props.height ?? 130 });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, some]);
  useEffect(() => {
    plot.current?.setData(table(props));
  }, [props.from, props.lines]);

  const at = (line: Line) => (index === null ? last(line.values) : (line.values[index] ?? null));
  const said = props.lines
    .map((line) => {
      const known = line.values.filter((value): value is number => value !== null);
      if (known.length === 0) return "";
      const values = { last: props.format(known[known.length - 1]!), max: props.format(Math.max(...known)) };
      return t("chart.summary", { title: line.label, ...values });
    })
    .join(". ");
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{props.title}</span>
        {index !== null && <span class="muted">{clock(props.from + index * props.step)}</span>}
        <span class="chart-legend">
          {props.lines.map((line) => (
            <span key={line.label}>
              <i class={`swatch swatch-${line.tone}`} aria-hidden="true" />
              {line.label} <b>{at(line) === null ? "–" : props.format(at(line)!)}</b>
            </span>
          ))}
        </span>
      </figcaption>
      {some ? <div ref={place} role="img" aria-label={said} /> : <p class="muted chart-empty">{t("chart.noData")}</p>}
    </figure>
  );
}
