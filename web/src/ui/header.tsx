/** The bar on top: which mesh this is, how the connection is, findings, colours and language. */
import type { JSX } from "preact";
import { type TextKey, t } from "../i18n/index.ts";
import { connection, findingsCount, live, mayAct, session } from "../state/mesh.ts";
import { language, nextTheme, theme } from "../state/prefs.ts";
import { href } from "../state/route.ts";
import { Prose } from "./errors.tsx";
import { Icon, Logo } from "./icons.tsx";

function Connection(): JSX.Element {
  const { state } = connection.value;
  const text = { live: "app.live", connecting: "app.connecting", offline: "app.offline", expired: "app.offline" }[
    state
  ];
  return (
    <span class={`connection connection-${state}`} role="status">
      <span class="connection-dot" aria-hidden="true" />
      {t(text as TextKey)}
    </span>
  );
}

function FindingsBadge(): JSX.Element {
  const { count, errors } = findingsCount.value;
  const text = count === 0 ? t("app.noFindings") : t("app.findings", { n: count });
  return (
    <a
      class={`findings-badge ${errors > 0 ? "has-errors" : count > 0 ? "has-warnings" : ""}`}
      href={href(["findings"])}
      title={text}
    >
      <Icon name="findings" />
      <span aria-hidden="true">{count}</span>
      <span class="hidden">{text}</span>
    </a>
  );
}

export function Header({ onMenu, menuOpen }: { onMenu: () => void; menuOpen: boolean }): JSX.Element {
  const mesh = session.value?.mesh;
  const { coverage } = live.value;
  const themeText = t(`app.theme.${theme.value}` as TextKey);
  return (
    <header class="header">
      <button
        type="button"
        class="icon-button menu-button"
        aria-label={t("app.menu")}
        aria-expanded={menuOpen}
        onClick={onMenu}
      >
        <Icon name="menu" />
      </button>
      <a class="brand" href={href(["graph"])}>
        <Logo />
        <span>Tulle</span>
      </a>
      {mesh && (
        <p class="mesh-name" title={`${mesh.trustDomain} · ${mesh.version}`}>
          <b>{mesh.name}</b>
          <span class="muted">
            {mesh.platform === "host" ? t("app.thisHost") : mesh.where}
            {coverage.proxies > 0 && ` · ${coverage.reporting}/${coverage.proxies}`}
          </span>
        </p>
      )}
      <span class="header-space" />
      {session.value && (
        <span class={`mode ${mayAct.value ? "mode-actions" : ""}`}>
          {t(mayAct.value ? "app.actions" : "app.readOnly")}
          {!mayAct.value && (
            <span class="hidden">
              <Prose text={t("app.readOnlyHint")} />
            </span>
          )}
        </span>
      )}
      <Connection />
      <FindingsBadge />
      <button
        type="button"
        class="text-button"
        title={t("app.languageHint")}
        lang={language.value === "zh" ? "en" : "zh-Hans"}
        onClick={() => {
          language.value = language.value === "zh" ? "en" : "zh";
        }}
      >
        {t("app.language")}
      </button>
      <button type="button" class="icon-button" aria-label={themeText} title={themeText} onClick={nextTheme}>
        <Icon name={theme.value === "system" ? "system" : theme.value === "light" ? "sun" : "moon"} />
      </button>
    </header>
  );
}
