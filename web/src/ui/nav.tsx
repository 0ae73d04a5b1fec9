/** The list of pages. On narrow screens it is a drawer. */
import type { JSX } from "preact";
import { type TextKey, t } from "../i18n/index.ts";
import { href, route } from "../state/route.ts";
import { Icon, type IconName } from "./icons.tsx";

const GROUPS: { title: TextKey; pages: IconName[] }[] = [
  { title: "nav.observe", pages: ["graph", "services", "gateways", "proxies"] },
  { title: "nav.configure", pages: ["policies", "routes", "objects", "certificates"] },
  { title: "nav.diagnose", pages: ["findings", "why", "compare", "tap"] },
];

export function Nav({ open, onPick }: { open: boolean; onPick: () => void }): JSX.Element {
  const current = route.value.parts[0];
  const moment = route.value.query.get("at");
  return (
    <nav class={`nav ${open ? "open" : ""}`} aria-label={t("nav.label")}>
      {GROUPS.map((group) => (
        <div key={group.title}>
          <p class="nav-title">{t(group.title)}</p>
          <ul>
            {group.pages.map((page) => (
              <li key={page}>
                <a
                  href={href([page], { at: page === "graph" || page === "why" ? moment : null })}
                  aria-current={current === page || (page === "objects" && current === "object") ? "page" : undefined}
                  onClick={onPick}
                >
                  <Icon name={page} />
                  {t(`nav.${page}` as TextKey)}
                </a>
              </li>
            ))}
          </ul>
        </div>
      ))}
    </nav>
  );
}
