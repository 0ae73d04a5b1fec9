/** The meaning of the graph's colours and lines. It can be folded away. */
import { useState } from "preact/hooks";
import { type TextKey, t } from "../i18n/index.ts";
import { Icon } from "../ui/icons.tsx";

const LINES = ["ok", "warning", "error", "denied", "idle"] as const;

export function Legend() {
  const [open, setOpen] = useState(() => innerWidth > 860);
  return (
    <div class="legend">
      <button type="button" class="legend-toggle" aria-expanded={open} onClick={() => setOpen(!open)}>
        {t("graph.legend")}
        <Icon name={open ? "close" : "right"} size={12} />
      </button>
      {open && (
        <ul>
          {LINES.map((tone) => (
            <li key={tone}>
              <svg class={`legend-line edge tone-${tone}`} width="20" height="8" aria-hidden="true">
                <path class="edge-line" d="M0 4h20" stroke-width="2.2" />
              </svg>
              {t(`legend.${tone}` as TextKey)}
            </li>
          ))}
          <li>
            <Icon name="lock" size={13} />
            {t("legend.mtls")}
          </li>
          <li class="legend-plain">
            <Icon name="unlock" size={13} />
            {t("legend.plain")}
          </li>
          <li>{t("legend.width")}</li>
        </ul>
      )}
    </div>
  );
}
