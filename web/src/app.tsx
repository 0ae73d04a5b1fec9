/** The frame around every page, and which page an address leads to. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { t, word } from "./i18n/index.ts";
import { CertificatesPage } from "./pages/certificates.tsx";
import { ComparePage } from "./pages/compare.tsx";
import { FindingsPage } from "./pages/findings.tsx";
import { GraphPage } from "./pages/graph.tsx";
import { ObjectPageView } from "./pages/object.tsx";
import { ObjectsPage } from "./pages/objects.tsx";
import { ProxiesPage } from "./pages/proxies.tsx";
import { ProxyPageView } from "./pages/proxy.tsx";
import { ServicePageView } from "./pages/service.tsx";
import { GatewaysPage, ServicesPage } from "./pages/services.tsx";
import { TapPage } from "./pages/tap.tsx";
import { WhyPage } from "./pages/why.tsx";
import { session } from "./state/mesh.ts";
import { language } from "./state/prefs.ts";
import { href, route } from "./state/route.ts";
import { PAST_PAGES } from "./state/time.ts";
import { ConnectionBanner, PastBanner } from "./ui/banner.tsx";
import { Empty } from "./ui/basics.tsx";
import { Header } from "./ui/header.tsx";
import { Nav } from "./ui/nav.tsx";
import { Timeline } from "./ui/timeline.tsx";

/** Pages that show the mesh over time have the strip of time below them. */
const TIMED = new Set(["graph", "why", "compare", "services", "proxies"]);

function page([name, ...rest]: string[]): JSX.Element {
  const id = rest.join("/");
  switch (name) {
    case "graph":
      return <GraphPage />;
    case "services":
      return id ? <ServicePageView key={id} id={id} /> : <ServicesPage />;
    case "gateways":
      return <GatewaysPage />;
    case "proxies":
      return id ? <ProxyPageView key={id} id={id} /> : <ProxiesPage />;
    case "policies":
    case "routes":
    case "objects":
      return <ObjectsPage key={name} set={name} />;
    case "object":
      return <ObjectPageView />;
    case "certificates":
      return <CertificatesPage />;
    case "findings":
      return <FindingsPage />;
    case "why":
      return <WhyPage />;
    case "compare":
      return <ComparePage />;
    case "tap":
      return <TapPage />;
    default:
      return (
        <Empty title={t("notFound.title")}>
          <a href={href(["graph"])}>{t("notFound.hint")}</a>
        </Empty>
      );
  }
}

function useTitle(name: string): void {
  const mesh = session.value?.mesh.name;
  useEffect(() => {
    const title = word("nav", name === "object" ? "objects" : name);
    document.title = [title, mesh, "Tulle"].filter(Boolean).join(" · ");
  }, [name, mesh, language.value]);
}

export function App(): JSX.Element {
  const [menu, setMenu] = useState(false);
  const { parts } = route.value;
  const name = parts[0]!;
  useTitle(name);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => event.key === "Escape" && setMenu(false);
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  return (
    <div class={`app page-${name}`}>
      <button type="button" class="skip" onClick={() => document.getElementById("main")?.focus()}>
        {t("app.skip")}
      </button>
      <Header onMenu={() => setMenu(!menu)} menuOpen={menu} />
      <ConnectionBanner />
      <div class="body">
        <Nav open={menu} onPick={() => setMenu(false)} />
        {menu && <button type="button" class="scrim" aria-label={t("app.close")} onClick={() => setMenu(false)} />}
        <div class="content">
          {PAST_PAGES.has(name) && <PastBanner />}
          <main id="main" tabIndex={-1}>
            {page(parts)}
          </main>
          {TIMED.has(name) && <Timeline />}
        </div>
      </div>
    </div>
  );
}
