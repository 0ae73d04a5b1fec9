/** What has to be known about the data itself: the connection, the session, and what the graph does not show. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { clock, rate, t } from "../i18n/index.ts";
import { connect, connection, type GraphData, live } from "../state/mesh.ts";
import { href } from "../state/route.ts";
import { codeRefused } from "../state/session.ts";
import { at, lookAt, now, window_ } from "../state/time.ts";
import { Prose } from "./errors.tsx";
import { Icon } from "./icons.tsx";

function Seconds({ until }: { until: number }): JSX.Element {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return <>{t("banner.retrying", { seconds: Math.max(0, Math.ceil((until - now) / 1000)) })}</>;
}

export function ConnectionBanner(): JSX.Element | null {
  const now = connection.value;
  if (now.state === "expired") {
    const text = codeRefused.value
      ? t("banner.code", { why: codeRefused.value })
      : t(live.value.at > 0 ? "banner.expired" : "banner.never");
    return (
      <div class="banner banner-error" role="alert">
        <Icon name="lock" />
        <span>
          <Prose text={text} />
        </span>
      </div>
    );
  }
  if (now.state !== "offline") return null;
  return (
    <div class="banner banner-warning" role="alert">
      <Icon name="clock" />
      <span>
        {t("banner.offline", { time: clock(live.value.at || now.since / 1000) })} <Seconds until={now.retryAt} />
      </span>
      <button type="button" class="button" onClick={connect}>
        {t("banner.retryNow")}
      </button>
    </div>
  );
}

/** On pages that can look at the past: says that they do. */
export function PastBanner(): JSX.Element | null {
  const moment = at.value;
  if (moment === null) return null;
  return (
    <div class="banner banner-accent" role="status">
      <Icon name="clock" />
      <span>{t("banner.past", { time: clock(moment) })}</span>
      <a class="button" href={href(["compare"], { before: String(moment), after: String(Math.floor(now.value)) })}>
        {t("time.compare")}
      </a>
      <button type="button" class="button" onClick={() => lookAt(null)}>
        {t("banner.backToNow")}
      </button>
    </div>
  );
}

export function GraphNotices({ graph }: { graph: GraphData }): JSX.Element | null {
  const { coverage, rest } = graph;
  const notices: string[] = [];
  if (rest && rest.edges > 0) notices.push(t("banner.rest", { n: rest.edges, rate: rate(rest.rate) }));
  if (coverage.reporting < coverage.proxies) {
    notices.push(t("banner.coverage", { n: coverage.reporting, all: coverage.proxies }));
  }
  if (graph.at > 0 && coverage.since > graph.at - window_.value + 5) {
    notices.push(t("banner.history", { time: clock(coverage.since) }));
  }
  if (notices.length === 0) return null;
  return (
    <ul class="notices">
      {notices.map((text) => (
        <li key={text}>{text}</li>
      ))}
    </ul>
  );
}
