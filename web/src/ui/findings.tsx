/** Findings: what does not fit together, what helps, and the object it is about. */
import type { JSX } from "preact";
import type { Finding } from "../api/types.ts";
import { translated } from "../i18n/findings.ts";
import { t, word } from "../i18n/index.ts";
import { objectHref } from "../state/route.ts";
import { Badge } from "./basics.tsx";
import { Prose } from "./errors.tsx";

export function FindingList({ findings }: { findings: readonly Finding[] }): JSX.Element {
  return (
    <ul class="findings">
      {findings.map((finding) => {
        const text = translated(finding.code);
        return (
          <li key={`${finding.code}${finding.message}${finding.field}`} class={`finding finding-${finding.severity}`}>
            <p class="finding-head">
              <Badge tone={finding.severity}>{word("findings", finding.severity)}</Badge>
              {finding.code && <code>{finding.code}</code>}
              {finding.object && (
                <a href={objectHref(finding.object)}>
                  {finding.object.kind}/{finding.object.name}
                  {finding.object.namespace && <span class="muted"> {finding.object.namespace}</span>}
                </a>
              )}
              {finding.field && <span class="mono muted">{finding.field}</span>}
            </p>
            {text && (
              <p>
                <Prose text={`${text.cause}。${text.effect}。`} />
              </p>
            )}
            <p class={text ? "muted" : undefined} lang="en">
              <Prose text={finding.message} />
            </p>
            {(text || finding.fix) && (
              <p class="finding-fix">
                <b>{t("error.fix")}:</b> <Prose text={text?.fix ?? finding.fix} />
              </p>
            )}
          </li>
        );
      })}
    </ul>
  );
}
