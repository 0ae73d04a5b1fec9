import assert from "node:assert/strict";
import { after, test } from "node:test";
import { end, open, visit } from "./console.mjs";

after(end);

test("the one-time code is exchanged, and gone from the address and from history", async () => {
  const { page, fixture, close } = await open();
  assert.equal(new URL(page.url()).hash, "#/graph");
  assert.ok(fixture.requests.includes("POST /api/v1/session"));
  assert.equal(fixture.codes.size, 0);
  await page.reload();
  await page.waitForSelector(".node");
  assert.equal(await page.evaluate(() => document.cookie), "", "scripts cannot read the session");
  await close();
});

test("without a session, and with a used code, the page says what to run", async () => {
  const { page, fixture, close } = await open({ session: false });
  await page.waitForSelector(".banner-error");
  assert.match(await page.textContent(".banner-error"), /There is no session.*tulle dashboard/);
  await page.goto(`${fixture.origin}/?again#code=abcdef`);
  await page.waitForFunction(() => /has been used/.test(document.querySelector(".banner-error")?.textContent));
  assert.ok(!page.url().includes("code="));
  await close();
});

test("offline the last data stay and the banner says since when; it comes back by itself", async () => {
  const { page, fixture, close } = await open();
  const before = await page.locator(".node").count();
  await fixture.stop();
  await page.waitForSelector(".banner-warning");
  assert.match(
    await page.textContent(".banner-warning"),
    /has not answered since \d\d:\d\d:\d\d.*Next attempt in \d+ s/s,
  );
  assert.equal(await page.locator(".node").count(), before);
  await visit(page, "#/services");
  await visit(page, "#/graph");
  assert.equal(await page.locator(".node").count(), before);
  await fixture.start();
  await page.waitForSelector(".banner-warning", { state: "detached" });
  await page.waitForSelector(".connection-live");
  await close();
});

test("an expired session says so, keeps the data, and asks no more", async () => {
  const { page, fixture, close } = await open();
  fixture.expire();
  await page.waitForSelector(".banner-error");
  assert.match(await page.textContent(".banner-error"), /session has ended.*tulle dashboard/);
  assert.ok((await page.locator(".node").count()) > 5);
  const asked = fixture.requests.length;
  await page.waitForTimeout(2500);
  assert.equal(fixture.requests.length, asked);
  const { hash } = new URL(fixture.address());
  await page.evaluate((next) => {
    location.hash = next;
  }, hash);
  await page.waitForSelector(".connection-live");
  assert.equal(await page.locator(".banner-error").count(), 0, "a new address in the same tab goes on");
  assert.ok(!page.url().includes("code="));
  await close();
});

test("a stream that was too slow is opened again, and a missed delta leads to a whole graph", async () => {
  const { page, fixture, close } = await open();
  const streams = () => fixture.requests.filter((r) => r === "GET /api/v1/events").length;
  assert.equal(streams(), 1);
  fixture.shed();
  await page.waitForFunction(() => document.querySelector(".connection-live"));
  const waitFor = async (count) => {
    for (let i = 0; i < 100 && streams() < count; i += 1) await page.waitForTimeout(50);
    assert.equal(streams(), count);
  };
  await waitFor(2);
  await page.waitForTimeout(600);
  fixture.revision += 3;
  await waitFor(3);
  await page.waitForSelector(".connection-live");
  await close();
});

test("with a slow controller pages say that they load, then show what came", async () => {
  const { page, close } = await open({ fixture: { slow: 700 } });
  await page.evaluate(() => {
    location.hash = "#/services";
  });
  await page.waitForSelector(".loading");
  await page.waitForSelector("tbody tr");
  await close();
});

test("a tab that nobody looks at closes its stream, and opens it when somebody does", async () => {
  const { page, fixture, close } = await open();
  const look = (hidden) =>
    page.evaluate((value) => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => value });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
  await page.clock.install();
  await look(true);
  const streams = async (count) => {
    for (let i = 0; i < 100 && fixture.streams.size !== count; i += 1)
      await new Promise((done) => setTimeout(done, 50));
    assert.equal(fixture.streams.size, count);
  };
  // The jump in time is also a silence of the stream, which is then opened anew.
  await page.clock.fastForward(29_000);
  await streams(1);
  await page.waitForTimeout(500);
  await page.clock.fastForward(2000);
  await streams(0);
  assert.equal(await page.locator(".banner-warning").count(), 0, "that is no outage");
  await look(false);
  await streams(1);
  await close();
});
