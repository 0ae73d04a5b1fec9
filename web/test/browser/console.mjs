/** Opens the page in Chromium before a fixture server, and watches for what must never happen. */
import assert from "node:assert/strict";
import { pageFiles } from "../../build.mjs";
import { browser } from "../../dev/chromium.mjs";
import { Fixture } from "../../dev/server.mjs";

let chrome;
let files;
/** Servers that run: those of a test that failed end after the last test. */
const running = new Set();

export async function open({ path = "#/graph", session = true, fixture: more = {}, ...context } = {}) {
  chrome ??= await browser();
  files ??= await pageFiles();
  const fixture = await new Fixture({ tick: 250, files, ...more }).start();
  running.add(fixture);
  const frame = await chrome.newContext({
    viewport: { width: 1440, height: 900 },
    locale: "en-GB",
    colorScheme: "light",
    timezoneId: "UTC",
    ...context,
  });
  const page = await frame.newPage();
  page.setDefaultTimeout(15_000);
  /** What must not happen in any test: errors, breaches of the policy, requests to elsewhere. */
  const problems = [];
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("console", (line) => {
    if (/Content Security Policy|Refused to/.test(line.text())) problems.push(`policy: ${line.text()}`);
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(fixture.origin) && !request.url().startsWith("data:")) {
      problems.push(`request to ${request.url()}`);
    }
  });
  await page.goto(session ? fixture.address() : fixture.origin);
  if (session) {
    await page.waitForSelector(".node, .timeline");
    if (path !== "#/graph") await visit(page, path);
    else await page.waitForSelector(".node");
  }
  const close = async () => {
    await frame.close();
    running.delete(fixture);
    await fixture.stop().catch(() => {});
    assert.deepEqual(problems, []);
  };
  return { page, fixture, problems, close };
}

/** Goes to a page by its address; the session stays. */
export async function visit(page, hash) {
  await page.evaluate((target) => {
    location.hash = target;
  }, hash);
  await page.waitForFunction(() => !document.querySelector(".loading"));
}

export async function end() {
  for (const fixture of running) await fixture.stop().catch(() => {});
  await chrome?.close();
  chrome = undefined;
}

/** Every page of the console, for tests about all of them. */
export function everyPage(fixture) {
  const proxy = fixture.find("proxies", new URLSearchParams()).proxies[0];
  const id = encodeURIComponent(proxy.id);
  return [
    "#/graph",
    "#/graph?edge=service%2Fgateway%3Eservice%2Fratings",
    "#/graph?edge=service%2Fproductpage%3Eservice%2Fdetails&tab=traffic",
    "#/graph?node=service%2Freviews",
    "#/graph?view=list",
    "#/services",
    "#/services/service%2Fdetails",
    "#/gateways",
    "#/proxies",
    `#/proxies/${id}`,
    `#/proxies/${id}?tab=config`,
    `#/proxies/${id}?tab=endpoints`,
    `#/proxies/${id}?tab=certificates`,
    "#/policies",
    "#/routes",
    "#/objects",
    "#/object?kind=TrafficTarget&name=ratings",
    "#/certificates",
    "#/findings",
    "#/why?from=gateway&to=ratings",
    "#/compare",
    "#/tap",
    "#/nothing",
  ];
}

/** Where the nodes of the graph stand. */
export const positions = (page) =>
  page.$$eval(".node", (nodes) => Object.fromEntries(nodes.map((n) => [n.dataset.id, n.getAttribute("transform")])));
