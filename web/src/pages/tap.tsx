/** The page of the live tap. */
import type { JSX } from "preact";
import { t } from "../i18n/index.ts";
import { Page } from "../ui/page.tsx";
import { Tap } from "../ui/tap.tsx";

export function TapPage(): JSX.Element {
  return (
    <Page title={t("tap.title")}>
      <Tap />
    </Page>
  );
}
