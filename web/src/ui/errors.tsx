/** Failed and refused requests: what happened, why, and what to do. */
import type { JSX } from "preact";
import type { ErrorSample } from "../api/types.ts";
import { ago, t } from "../i18n/index.ts";
import { explained } from "../i18n/reasons.ts";
import { now } from "../state/time.ts";
import { Badge, Identity } from "./basics.tsx";

/** Backquoted words of a text as code. */
export function Prose({ text }: { text: string }): JSX.Element {
  return <>{text.split("`").map((part, i) => (i % 2 ? <code key={`${i}${part}`}>{part}</code> : part))}</>;
}

/** The two ends of a call, as commands name them. */
export interface CallNames {
  from: string;
  to: string;
}

interface ExplanationProps {
  code: string;
  cause?: string;
  fix?: string;
  /** Commands then name them, and can be copied as they are. */
  names?: CallNames | undefined;
}

export function Explanation({ code, cause, fix, names }: ExplanationProps): JSX.Element | null {
  const text = explained(code, { cause: cause ?? "", fix: fix ?? "" });
  if (names) text.fix = text.fix.replace("FROM TO PATH", `${names.from} ${names.to}`);
  if (!text.cause) return null;
  return (
    <dl class="explanation">
      <div>
        <dt>{t("error.cause")}</dt>
        <dd>
          <Prose text={text.cause} />
        </dd>
      </div>
      {text.fix && (
        <div>
          <dt>{t("error.fix")}</dt>
          <dd>
            <Prose text={text.fix} />
          </dd>
        </div>
      )}
    </dl>
  );
}

interface ErrorListProps {
  errors: ErrorSample[];
  names?: CallNames | undefined;
  /** Codes that are explained elsewhere. */
  known?: string[];
}

export function ErrorList({ errors, names, known = [] }: ErrorListProps): JSX.Element {
  if (errors.length === 0) return <p class="muted">{t("edge.noErrors")}</p>;
  return (
    <ul class="errors">
      {errors.map((error) => {
        const when = ago(error.at, now.value);
        const times =
          error.count > 1 ? t("error.times", { n: error.count, ago: when }) : t("error.once", { ago: when });
        return (
          <li key={`${error.at}${error.reason}${error.path}${error.proxy}`}>
            <p class="error-head">
              <Badge tone="error">{error.status || "TCP"}</Badge>
              <strong>{error.reason === "-" ? t("error.answer") : error.reason}</strong>
              <span class="muted">{times}</span>
            </p>
            {(error.method || error.path) && (
              <p class="mono error-request">
                {error.method} {error.path}
              </p>
            )}
            <p class="muted small">
              {t("error.seenBy", { who: "" })}
              <Identity id={error.proxy} />
              {error.upstream && `, ${t("error.upstream", { where: error.upstream })}`}
              {error.grpcStatus !== null && `, grpc-status ${error.grpcStatus}`}
            </p>
            {!known.includes(error.reason) && (
              <Explanation code={error.reason} cause={error.cause} fix={error.fix} names={names} />
            )}
          </li>
        );
      })}
    </ul>
  );
}
