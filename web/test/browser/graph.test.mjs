import assert from "node:assert/strict";
import { after, test } from "node:test";
import { end, open, positions, visit } from "./console.mjs";

after(end);
/** The budget on a machine of its own. Tests share theirs, which makes figures worse and never better. */
const FIRST_PAINT_MS = 500;
const SHARED_MACHINE = 3;
const ATTEMPTS = 4;

/** Milliseconds from the arrival of the first data until the first graph was painted. */
async function firstPaint(page) {
  await page.waitForFunction(() => performance.getEntriesByName("painted").length > 0);
  return page.evaluate(() => {
    const [data] = performance.getEntriesByName("data");
    const [painted] = performance.getEntriesByName("painted");
    return painted.startTime - data.startTime;
  });
}

test("1,000 services are painted soon after their data", async () => {
  const took = [];
  while (took.length < ATTEMPTS && !(Math.min(...took) <= FIRST_PAINT_MS)) {
    const { page, close } = await open({ fixture: { mesh: "large", tick: 60_000 } });
    took.push(await firstPaint(page));
    await close();
  }
  const best = Math.min(...took);
  console.log(`1,000 services: first paint ${Math.round(best)} ms after the data (budget ${FIRST_PAINT_MS} ms)`);
  assert.ok(best < FIRST_PAINT_MS * SHARED_MACHINE, `${best} ms`);
});

test("1,000 services are groups that open and close, and a search finds one of them", async () => {
  const { page, close } = await open({ fixture: { mesh: "large", tick: 1000 } });
  assert.equal(await page.locator(".node-group").count(), 20);
  assert.match(await page.textContent(".notices"), /quieter edges.*988 of 1002 proxies report/s);
  await page.click('[data-id="group/shop"]');
  await page.waitForSelector(".box");
  assert.ok((await page.locator(".node-service").count()) >= 40);
  await page.click(".box-close");
  await page.waitForSelector(".box", { state: "detached" });
  await page.fill(".toolbar input[type=search]", "auth.shop");
  await page.waitForSelector('[data-id="service/auth.shop"]');
  await close();
});

test("nothing moves in 20 deltas, nor by a filter, nor when a service is new", async () => {
  const { page, fixture, close } = await open({ fixture: { tick: 60_000 } });
  const before = await positions(page);
  for (let i = 0; i < 20; i += 1) fixture.beat();
  await page.waitForTimeout(300);
  assert.deepEqual(await positions(page), before);
  await page.fill(".toolbar input[type=search]", "details");
  await page.waitForFunction(() => document.querySelectorAll(".node").length < 6);
  for (const [id, place] of Object.entries(await positions(page))) assert.equal(place, before[id], id);
  await page.fill(".toolbar input[type=search]", "");
  await page.waitForFunction((n) => document.querySelectorAll(".node").length === n, Object.keys(before).length);
  const copy = { ...fixture.mesh.nodes.get("service/details"), id: "service/newcomer", name: "newcomer" };
  fixture.mesh.nodes.set(copy.id, copy);
  fixture.beat();
  await page.waitForSelector('[data-id="service/newcomer"]');
  const { "service/newcomer": place, ...others } = await positions(page);
  assert.ok(place);
  assert.deepEqual(others, before);
  await page.reload();
  await page.waitForSelector(".node");
  assert.deepEqual(await positions(page), { ...before, "service/newcomer": place }, "a reload moves nothing either");
  await close();
});

test("each call that came after the layout was made has a label that can be picked", async () => {
  const { page, close } = await open();
  await page.waitForFunction(() => sessionStorage.getItem("tulle.layouts"));
  await page.evaluate(() => {
    const kept = JSON.parse(sessionStorage.getItem("tulle.layouts"));
    for (const layout of Object.values(kept)) {
      // One call was there: without any it would be a grid, which has no room for labels.
      layout.edges = Object.fromEntries(Object.entries(layout.edges).slice(0, 1));
      layout.labels = {};
    }
    sessionStorage.setItem("tulle.layouts", JSON.stringify(kept));
  });
  await page.reload();
  await page.waitForSelector(".edge-label");
  const hidden = await page.$$eval(".edge-label", (labels) =>
    labels
      .filter((label) => {
        const { x, y, width, height } = label.querySelector("rect").getBoundingClientRect();
        return document.elementFromPoint(x + width / 2, y + height / 2)?.closest("[data-label]") !== label;
      })
      .map((label) => label.dataset.label),
  );
  assert.deepEqual(hidden, []);
  const covered = await page.$$eval(".node-card", (cards) => {
    const labels = [...document.querySelectorAll(".edge-label rect")].map((label) => label.getBoundingClientRect());
    const isOver = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    return cards.filter((card) => labels.some((label) => isOver(label, card.getBoundingClientRect()))).length;
  });
  assert.equal(covered, 0, "in a graph with room, no label lies on a card");
  if (process.env.SHOT) await page.screenshot({ path: process.env.SHOT });
  await close();
});

test("filters, search, groups, windows and the list work, and live in the address", async () => {
  const { page, close } = await open();
  const edges = () => page.locator(".edge[data-edge]").count();
  const all = await edges();
  await page.selectOption('select[title="Show"]', "denied");
  await page.waitForFunction(() => document.querySelectorAll(".edge[data-edge]").length === 1);
  assert.match(page.url(), /show=denied/);
  await page.selectOption('select[title="Show"]', "plaintext");
  await page.waitForFunction(() => document.querySelectorAll(".edge[data-edge]").length === 2);
  await page.selectOption('select[title="Show"]', "all");
  await page.keyboard.press("/");
  await page.keyboard.type("nothing has this name");
  await page.click("text=Clear the filter");
  await page.waitForFunction((n) => document.querySelectorAll(".edge[data-edge]").length === n, all);
  await page.selectOption('select[title="Group"]', "host");
  await page.waitForSelector(".box:has-text('node-2')");
  await page.selectOption('select[title="Window"]', "300");
  await page.waitForFunction(() => location.hash.includes("window=300"));
  await page.click(".segments >> text=List");
  await page.waitForSelector("table");
  await page.click("th >> text=P99");
  await page.click("th >> text=P99");
  assert.match(await page.textContent("tbody tr:first-child"), /productpage.*details/s);
  await close();
});

test("the view moves by mouse and zooms around the pointer; the picked call is never behind the panel", async () => {
  const { page, close } = await open({ viewport: { width: 1200, height: 760 } });
  const view = () => page.$eval("svg.canvas > g", (g) => g.getAttribute("transform"));
  const first = await view();
  await page.mouse.move(500, 640);
  await page.mouse.down();
  await page.mouse.move(560, 600);
  await page.mouse.up();
  const second = await view();
  assert.notEqual(second, first);
  await page.mouse.wheel(0, -300);
  await page.waitForFunction(
    (before) => document.querySelector("svg.canvas > g").getAttribute("transform") !== before,
    second,
  );
  await page.click('button[aria-label="Show everything"]');
  await visit(page, "#/graph?edge=service%2Freviews%3Eservice%2Fratings");
  await page.waitForTimeout(200);
  const panel = await page.locator(".panel").boundingBox();
  for (const id of ["service/reviews", "service/ratings"]) {
    const box = await page.locator(`[data-id="${id}"] .node-card`).boundingBox();
    assert.ok(box.x >= 0 && box.x + box.width <= panel.x + 1, `${id} is visible`);
  }
  await close();
});
