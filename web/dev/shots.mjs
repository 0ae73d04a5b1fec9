/**
 * Takes pictures of every page: `node dev/shots.mjs [NAME …]` into web/dev/shots, `--docs` those of the documentation
 * into docs/console.
 */
import { mkdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { pageFiles } from "../build.mjs";
import { browser } from "./chromium.mjs";
import { Fixture } from "./server.mjs";

const WIDE = { width: 1440, height: 900 };
const NARROW = { width: 375, height: 740 };
const EDGE = "#/graph?edge=service%2Fgateway%3Eservice%2Fratings";
const recentProxy = (fixture) =>
  `#/proxies/${encodeURIComponent(fixture.find("proxies", new URLSearchParams()).proxies.find((p) => p.name === "gateway").id)}`;

const PAGES = {
  graph: "#/graph",
  edge: EDGE,
  "edge-traffic": "#/graph?edge=service%2Fproductpage%3Eservice%2Fdetails&tab=traffic",
  "edge-errors": "#/graph?edge=service%2Freviews%3Eservice%2Farchive&tab=errors",
  node: "#/graph?node=service%2Freviews",
  list: "#/graph?view=list",
  hosts: "#/graph?group=host",
  past: () => `#/graph?at=${Math.round(Date.now() / 1000 - 600)}`,
  services: "#/services",
  service: "#/services/service%2Fdetails",
  gateways: "#/gateways",
  proxies: "#/proxies",
  proxy: recentProxy,
  "proxy-config": (f) => `${recentProxy(f)}?tab=config`,
  "proxy-endpoints": (f) => `${recentProxy(f)}?tab=endpoints`,
  policies: "#/policies",
  routes: "#/routes",
  objects: "#/objects",
  object: "#/object?kind=TrafficTarget&name=ratings",
  certificates: "#/certificates",
  findings: "#/findings",
  why: "#/why?from=gateway&to=ratings&path=%2Fratings%2F1",
  compare: "#/compare",
  tap: "#/tap",
};

/** Name: mesh, page, and how the browser is set. */
const SHOTS = {};
for (const name of Object.keys(PAGES)) SHOTS[name] = { page: name };
for (const name of ["graph", "edge", "service", "proxy", "findings", "compare", "tap", "object"])
  SHOTS[`${name}-dark`] = { page: name, dark: true };
for (const name of ["graph", "edge", "services", "service", "proxy", "findings", "why", "compare", "tap", "object"])
  SHOTS[`${name}-narrow`] = { page: name, view: NARROW };
for (const name of ["graph", "edge", "service", "findings", "certificates", "why"])
  SHOTS[`${name}-zh`] = { page: name, zh: true };
SHOTS.large = { mesh: "large", page: "graph" };
SHOTS["large-dark"] = { mesh: "large", page: "graph", dark: true };
SHOTS["large-open"] = { mesh: "large", hash: "#/graph?open=group%2Fshop" };
SHOTS["large-search"] = { mesh: "large", hash: "#/graph?q=auth.shop" };
SHOTS.calm = { mesh: "calm", page: "graph" };
SHOTS.offline = {
  page: "graph",
  after: async (page, fixture) => {
    await fixture.stop();
    await page.waitForSelector(".banner-warning");
  },
};
SHOTS.expired = {
  page: "graph",
  after: async (page, fixture) => {
    fixture.expire();
    await page.waitForSelector(".banner-error");
  },
};
SHOTS["object-edit"] = { page: "object", actions: true, after: (page) => page.click("text=Edit") };
SHOTS["menu-narrow"] = { page: "services", view: NARROW, after: (page) => page.click(".menu-button") };

/** Pictures of the documentation: smaller, so that a page of them loads quickly. */
const DOCS = {
  graph: { page: "graph" },
  why: { page: "edge" },
  service: { page: "service", dark: true },
  proxy: { page: "proxy" },
  large: { mesh: "large", page: "graph" },
  compare: { page: "compare", dark: true },
  chinese: { page: "graph", zh: true },
  narrow: { page: "edge", view: NARROW },
};

async function shoot(chrome, files, name, shot, path) {
  const fixture = await new Fixture({
    mesh: shot.mesh ?? "bookinfo",
    actions: shot.actions ?? false,
    tick: 1000,
    files,
  }).start();
  const context = await chrome.newContext({
    viewport: shot.view ?? shot.size ?? WIDE,
    colorScheme: shot.dark ? "dark" : "light",
    locale: shot.zh ? "zh-CN" : "en-GB",
    timezoneId: "UTC",
  });
  const page = await context.newPage();
  page.on("console", (line) => line.type() === "error" && console.log(`${name}: ${line.text()}`));
  page.on("pageerror", (error) => console.log(`${name}: ${error.message}`));
  await page.goto(fixture.address());
  await page.waitForSelector(".node, .timeline");
  const target = shot.hash ?? PAGES[shot.page];
  await page.evaluate(
    (hash) => {
      location.hash = hash;
    },
    typeof target === "function" ? target(fixture) : target,
  );
  if (shot.page === "tap") await page.click("button[type=submit]");
  await page.waitForTimeout(shot.page === "tap" ? 1600 : 900);
  await shot.after?.(page, fixture);
  await page.screenshot({ path });
  await context.close();
  await fixture.stop().catch(() => {});
}

const words = process.argv.slice(2);
const docs = words.includes("--docs");
const wanted = words.filter((word) => !word.startsWith("--"));
const folder = fileURLToPath(new URL(docs ? "../../docs/console/" : "./shots/", import.meta.url));
mkdirSync(folder, { recursive: true });
const chrome = await browser();
const files = await pageFiles();
for (const [name, shot] of Object.entries(docs ? DOCS : SHOTS)) {
  if (wanted.length && !wanted.includes(name)) continue;
  await shoot(
    chrome,
    files,
    name,
    docs ? { size: { width: 1280, height: 760 }, ...shot } : shot,
    `${folder}${name}.png`,
  );
}
await chrome.close();
