/** The two charts of a call or a service. */
import type { Series } from "../api/types.ts";
import { milliseconds, rate, t } from "../i18n/index.ts";
import { Chart } from "./chart.tsx";

export function TrafficCharts({ series }: { series: Series }) {
  const time = { from: series.from, step: series.step };
  const some = (values: number[]) => values.some((value) => value > 0);
  return (
    <div class="charts">
      <Chart
        title={t("chart.requests")}
        {...time}
        format={rate}
        lines={[
          { label: t("chart.rate"), tone: "accent", values: series.rate, fill: true },
          ...(some(series.failed) ? [{ label: t("edge.failed"), tone: "error", values: series.failed }] : []),
          ...(some(series.denied) ? [{ label: t("edge.denied"), tone: "denied", values: series.denied }] : []),
        ]}
      />
      <Chart
        title={t("chart.latency")}
        {...time}
        format={milliseconds}
        lines={[
          { label: "P50", tone: "accent", values: series.p50 },
          { label: "P99", tone: "warning", values: series.p99 },
        ]}
      />
    </div>
  );
}
