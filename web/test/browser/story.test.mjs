import assert from "node:assert/strict";
import { after, test } from "node:test";
import { DENIED } from "../../dev/bookinfo.mjs";
import { end, open, visit } from "./console.mjs";

after(end);
const edge = (tone) => `.edge.tone-${tone}[data-edge="${DENIED}"]`;

test("a denied call turns red, two clicks say why, and allowed it turns green", async () => {
  const { page, fixture, close } = await open({ fixture: { mesh: "calm" } });
  await page.waitForSelector(edge("ok"));
  fixture.deny();
  await page.waitForSelector(edge("denied"));
  const dashes = await page.$eval(`${edge("denied")} .edge-line`, (line) => getComputedStyle(line).strokeDasharray);
  assert.notEqual(dashes, "none", "a denied call is dashed, not only red");
  await page.click(`.edge-label.tone-denied[data-label="${DENIED}"]`);
  await page.click('.panel [role="tab"]:has-text("Why")');
  const text = await page.textContent(".panel");
  assert.match(text, /gateway may not call ratings/);
  assert.match(text, /TrafficTarget\/ratings/);
  assert.match(text, /source not listed/);
  assert.match(text, /a rule denies this caller/, "the cause of the reason code");
  assert.match(text, /tulle why gateway ratings; add or widen a TrafficTarget/, "and what to do");
  assert.match(text, /\/ratings\/2099a055/, "the last refused request");
  fixture.allow();
  await page.waitForSelector(edge("ok"));
  await page.waitForFunction(() => document.querySelector(".panel").textContent.includes("gateway may call ratings"));
  await close();
});

test("each of the other faults is one or two clicks away from its cause", async () => {
  const { page, close } = await open();
  const told = async (id, pattern) => {
    await page.click(`.edge-label[data-label="${id}"]`);
    await page.waitForFunction(
      (source) => new RegExp(source).test(document.querySelector(".panel")?.textContent),
      pattern.source,
    );
    await page.keyboard.press("Escape");
    await page.waitForSelector(".panel", { state: "detached" });
  };
  await told("service/reviews>service/recommend", /no_endpoint.*no endpoint that is ready/s);
  await told("service/productpage>service/stock", /circuit_open.*too many requests to the destination failed/s);
  await told("service/reviews>service/archive", /tls_failed.*expired certificate/s);
  await told("service/productpage>service/details", /P99[\d.]+ s/);
  await visit(page, "#/certificates");
  assert.match(await page.textContent("tbody tr:nth-child(2)"), /archive.*expired/s);
  await visit(page, "#/proxies");
  await page.click("tbody tr:has-text('refused') a");
  assert.match(await page.textContent(".failure"), /refused its last configuration.*regular expression/s);
  await close();
});

test("the past is one click on a mark away, and comparing says what changed", async () => {
  const { page, close } = await open();
  await page.waitForSelector(edge("denied"));
  const mark = page.locator('.mark[aria-label*="TrafficTarget ratings"]');
  await mark.click();
  await page.waitForSelector(".banner-accent");
  await page.waitForSelector(edge("denied"), { state: "detached" });
  await page.focus(".strip-slider");
  for (let i = 0; i < 3; i += 1) await page.keyboard.press("PageUp");
  await page.waitForSelector(edge("denied"));
  await page.keyboard.press("End");
  await page.waitForSelector(".banner-accent", { state: "detached" });
  await visit(page, "#/compare");
  await page.click(".chips button:has-text('TrafficTarget ratings')");
  await page.waitForSelector("td:has-text('gateway → ratings')");
  assert.match(await page.textContent("tr:has-text('gateway → ratings')"), /100%.*0%/s);
  await close();
});

test("requests can be watched, and only the failed ones", async () => {
  const { page, close } = await open({ path: "#/tap" });
  await page.click(".tap-form [type=submit]");
  await page.waitForSelector(".tap-lines li:nth-child(10)");
  await page.click(".tap-form [type=submit]");
  await page.click('.tap-form button:has-text("Clear")');
  await page.check("text=Only failures");
  await page.click(".tap-form [type=submit]");
  await page.waitForSelector(".tap-lines li:nth-child(5)");
  const healthy = await page.locator(".tap-lines .badge-ok").count();
  assert.equal(healthy, 0);
  await page.click(".tap-line >> nth=0");
  assert.match(await page.textContent(".tap-detail"), /Cause/);
  await close();
});

test("without actions nothing can be changed, with them a policy can", async () => {
  const object = "#/object?kind=TrafficTarget&name=ratings";
  const reader = await open({ path: object });
  await reader.page.waitForSelector(".yaml");
  assert.equal(await reader.page.locator("text=Edit").count(), 0);
  await reader.close();
  const { page, fixture, close } = await open({ path: object, fixture: { actions: true } });
  await page.click("text=Edit");
  await page.click("text=Check without applying");
  await page.waitForSelector("text=Nothing stands against it.");
  await page.click(".button.primary");
  await page.waitForSelector("text=Applied: TrafficTarget/ratings configured");
  await visit(page, "#/graph");
  await page.waitForSelector(edge("ok"));
  const proxy = fixture.find("proxies", new URLSearchParams()).proxies[0];
  await visit(page, `#/proxies/${encodeURIComponent(proxy.id)}`);
  await page.selectOption(".inline-form select", "debug");
  await page.click("text=Change for 10 minutes");
  await page.waitForSelector("text=The log level is debug for 10 minutes.");
  await page.click(".button.danger");
  await page.click(".button.danger");
  await page.waitForSelector("text=The identity is refused from now on.");
  assert.ok(fixture.requests.includes("POST /api/v1/actions/revoke"));
  await close();
});
