/** The panel at the side: on narrow screens it covers the page. Escape closes it, and gives the focus back. */
import type { ComponentChildren, JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { t } from "../i18n/index.ts";
import { IconButton } from "./basics.tsx";

export function Panel(props: {
  title: ComponentChildren;
  label: string;
  onClose: () => void;
  children: ComponentChildren;
}): JSX.Element {
  const panel = useRef<HTMLElement>(null);
  const onClose = useRef(props.onClose);
  onClose.current = props.onClose;
  useLayoutEffect(() => {
    const before = document.activeElement as (HTMLElement & { dataset: DOMStringMap }) | null;
    const id = before?.dataset?.id;
    panel.current?.focus({ preventScroll: true });
    const onKey = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || event.defaultPrevented) return;
      onClose.current();
    };
    addEventListener("keydown", onKey);
    return () => {
      removeEventListener("keydown", onKey);
      const same = id ? document.querySelector<HTMLElement>(`[data-id="${CSS.escape(id)}"]`) : before;
      if (document.activeElement === document.body || panel.current?.contains(document.activeElement)) same?.focus();
    };
  }, []);
  return (
    <aside class="panel" aria-label={props.label} tabIndex={-1} ref={panel}>
      <header>
        <div class="panel-title">{props.title}</div>
        <IconButton icon="close" label={t("app.close")} onClick={props.onClose} />
      </header>
      <div class="panel-body">{props.children}</div>
    </aside>
  );
}
