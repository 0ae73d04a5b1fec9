import assert from "node:assert/strict";
import { after, test } from "node:test";
import { end, everyPage, open, visit } from "./console.mjs";
import { contrasts } from "./contrast.mjs";

after(end);

test("everything on the way from the graph to why can be done by keyboard", async () => {
  const { page, close } = await open();
  const focus = () => page.evaluate(() => document.activeElement.dataset.id ?? document.activeElement.textContent);
  const inGraph = () => page.evaluate(() => document.activeElement.matches(".node"));
  for (let i = 0; i < 60 && !(await inGraph()); i += 1) await page.keyboard.press("Tab");
  assert.match(await focus(), /^(service|gateway|outside)/, "the graph is reached by Tab");
  const start = await focus();
  await page.keyboard.press("ArrowRight");
  const next = await focus();
  assert.notEqual(next, start);
  const outline = await page.$eval(".node:focus .node-card", (card) => getComputedStyle(card).strokeWidth);
  assert.equal(outline, "3px", "the focus is visible");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".panel");
  assert.equal(await page.evaluate(() => document.activeElement.className), "panel");
  await page.keyboard.press("Escape");
  await page.waitForSelector(".panel", { state: "detached" });
  assert.equal(await focus(), next, "the focus returns");
  await page.focus('[data-id="service/gateway"]');
  await page.keyboard.press("Enter");
  for (let i = 0; i < 20 && !(await focus()).startsWith("failing"); i += 1) await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".verdict-denied");
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.type), "search");
  await page.keyboard.press("Escape");
  await page.focus('.panel [role="tab"][aria-selected="true"]');
  await page.keyboard.press("ArrowRight");
  await page.waitForSelector(".chart");
  await page.focus('.mark[tabindex="0"]');
  await page.keyboard.press("ArrowLeft");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".banner-accent");
  await close();
});

test("every page keeps to the policy, asks nobody else, and has a heading", async () => {
  const { page, fixture, close } = await open();
  await page.evaluate(() => {
    window.breaches = [];
    addEventListener("securitypolicyviolation", (event) => window.breaches.push(event.violatedDirective));
  });
  for (const path of everyPage(fixture)) {
    await visit(page, path);
    await page.waitForTimeout(150);
    if (path !== "#/nothing") assert.equal(await page.locator("h1").count(), 1, path);
  }
  assert.deepEqual(await page.evaluate(() => window.breaches), []);
  const inline = await page.evaluate(() => document.querySelectorAll("style, script:not([src])").length);
  assert.equal(inline, 0);
  await close();
});

test("at 360 pixels no page is wider than the screen, and the menu opens and closes", async () => {
  const { page, fixture, close } = await open({ viewport: { width: 360, height: 720 } });
  for (const path of everyPage(fixture)) {
    await visit(page, path);
    await page.waitForTimeout(80);
    const wide = await page.evaluate(() => {
      const main = document.querySelector("main");
      return Math.max(document.documentElement.scrollWidth - innerWidth, main.scrollWidth - main.clientWidth);
    });
    assert.ok(wide <= 0, `${path} is ${wide} pixels too wide`);
  }
  await page.click(".menu-button");
  await page.click(".nav.open >> text=Services");
  await page.waitForSelector(".nav.open", { state: "detached" });
  assert.match(page.url(), /#\/services$/);
  await close();
});

test("a Chinese browser gets Chinese, and the choice of a language lasts", async () => {
  const { page, close } = await open({ locale: "zh-CN" });
  assert.equal(await page.evaluate(() => document.documentElement.lang), "zh-Hans");
  assert.match(await page.textContent(".nav"), /拓扑图.*服务.*网关/s);
  await visit(page, "#/graph?edge=service%2Fgateway%3Eservice%2Fratings");
  await page.waitForSelector("text=gateway 不可以调用 ratings");
  await page.waitForSelector("text=有规则拒绝了该调用方");
  await page.click("text=English");
  await page.waitForSelector("text=gateway may not call ratings");
  await page.reload();
  await page.waitForSelector(".nav >> text=Services");
  await close();
});

test("with reduced motion nothing moves by itself", async () => {
  const { page, fixture, close } = await open({ reducedMotion: "reduce" });
  for (const path of everyPage(fixture)) {
    await visit(page, path);
    const moving = await page.evaluate(
      () =>
        [...document.querySelectorAll("*")].filter((element) => {
          const { transitionDuration, animationName } = getComputedStyle(element);
          return animationName !== "none" || transitionDuration.split(",").some((d) => Number.parseFloat(d) > 0);
        }).length,
    );
    assert.equal(moving, 0, path);
  }
  await close();
});

for (const colorScheme of ["light", "dark"]) {
  test(`text has enough contrast in ${colorScheme} (WCAG AA)`, async () => {
    const { page, fixture, close } = await open({ colorScheme, reducedMotion: "reduce" });
    for (const path of everyPage(fixture)) {
      await visit(page, path);
      await page.waitForTimeout(120);
      assert.deepEqual(await page.evaluate(contrasts), [], path);
    }
    await close();
  });
}

test("colours follow the system until somebody chooses", async () => {
  const { page, close } = await open({ colorScheme: "dark" });
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
  assert.equal(await theme(), "dark");
  await page.emulateMedia({ colorScheme: "light" });
  await page.waitForFunction(() => document.documentElement.dataset.theme === "light");
  await page.click('button[aria-label^="Colours"]');
  await page.click('button[aria-label^="Colours"]');
  assert.equal(await theme(), "dark");
  await page.reload();
  await page.waitForSelector(".node");
  assert.equal(await theme(), "dark");
  await close();
});
