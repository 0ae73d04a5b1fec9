/** An explanation of a call: the verdict, what decided, and where the call goes. */
import type { ComponentChildren, JSX } from "preact";
import type { Why } from "../api/types.ts";
import { said, t } from "../i18n/index.ts";
import { session } from "../state/mesh.ts";
import { objectHref } from "../state/route.ts";
import { Badge, Facts, Identity } from "./basics.tsx";
import { Icon } from "./icons.tsx";

/** `Kind/name`, in a cluster `Kind/name.namespace`, as a link to the object; anything else as it is. */
export function ObjectLink({ text }: { text: string }): JSX.Element {
  const match = /^([A-Z]\w+)\/([\w.-]+)$/.exec(text);
  if (!match) return <>{text}</>;
  const [, kind, whole] = match;
  const dot = session.value?.mesh.platform === "cluster" ? whole!.lastIndexOf(".") : -1;
  const name = dot < 0 ? whole : whole!.slice(0, dot);
  const namespace = dot < 0 ? null : whole!.slice(dot + 1);
  return <a href={objectHref({ kind: kind!, name: name!, namespace: namespace ?? null })}>{text}</a>;
}

function Several({ values }: { values: string[] }): JSX.Element | null {
  if (values.length === 0) return null;
  return (
    <ul class="plain-list">
      {values.map((value) => (
        <li key={value}>{value}</li>
      ))}
    </ul>
  );
}

export function Verdict({ why, from, to }: { why: Why; from: string; to: string }): JSX.Element {
  return (
    <div class={`verdict ${why.allowed ? "verdict-allowed" : "verdict-denied"}`} role="status">
      <Icon name={why.allowed ? "check" : "cross"} size={18} />
      <div>
        <p class="verdict-title">{t(why.allowed ? "why.verdict.allowed" : "why.verdict.denied", { from, to })}</p>
        <p>{said(why.reason)}</p>
      </div>
    </div>
  );
}

export function WhyView({ why, from, to }: { why: Why; from: string; to: string }): JSX.Element {
  const identities = (list: string[]): ComponentChildren =>
    list.length > 0 && (
      <ul class="plain-list">
        {list.map((id) => (
          <li key={id}>
            <Identity id={id} />
          </li>
        ))}
      </ul>
    );
  const route = why.route && (
    <>
      <ObjectLink text={why.route} />
      {why.rule && <span class="muted"> {why.rule}</span>}
    </>
  );
  return (
    <div class="why">
      <Verdict why={why} from={from} to={to} />
      <Facts
        rows={[
          [
            t("why.policy"),
            why.policy ? (
              <ObjectLink text={why.policy} />
            ) : (
              <span class="muted">{t(why.allowed ? "why.noPolicy" : "why.noneAllows")}</span>
            ),
          ],
          [t("why.route"), route || <span class="muted">{t("why.noRoute")}</span>],
          [t("why.filters"), why.filters.length > 0 && <Several values={why.filters.map(said)} />],
          [t("why.split"), why.split.length > 0 && <Several values={why.split} />],
          [t("why.limits"), why.limits.length > 0 && <Several values={why.limits.map(said)} />],
          [t("why.timeout"), said(why.timeout)],
          [t("why.retry"), said(why.retry)],
          [t("why.source"), why.sourceIdentity && <Identity id={why.sourceIdentity} />],
          [t("why.destination"), identities(why.destinationIdentities)],
          [
            t("why.endpoints"),
            why.endpoints.length ? (
              <Several values={why.endpoints.map(said)} />
            ) : (
              <Badge tone="error">{t("why.noEndpoints")}</Badge>
            ),
          ],
          [t("why.destinations"), why.destinations.length > 1 && <Several values={why.destinations} />],
          [t("why.conflicts"), why.conflicts.length > 0 && <Several values={why.conflicts.map(said)} />],
          [t("why.security"), why.mtls],
        ]}
      />
      {why.considered.length > 0 && (
        <>
          <h3>{t("why.considered")}</h3>
          <ul class="considered">
            {why.considered.map((policy) => (
              <li key={`${policy.kind}/${policy.name}`}>
                <ObjectLink text={policy.kind ? `${policy.kind}/${policy.name}` : policy.name} />
                <span class="muted">{said(policy.outcome)}</span>
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
}
