/**
 * The demo's story on a mesh that is up: deny, see a red edge, learn why, allow, see it turn green. The programs are
 * those of target/debug, or of the directory that TULLE_PROGRAMS names.
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { freePort, Mesh, programs, root } from "./mesh.mjs";

const RATING = "ratings/2099a055-1e21-46ef-825e-9e0de93554ea";
const EDGE = "service/gateway>service/ratings";
/** A horizontal line has no height, so it is not `visible`. */
const shown = { state: "attached" };
const edge = (tone) => `.edge.tone-${tone}[data-edge="${EDGE}"]`;

const mesh = new Mesh();
let ingress;

/** A file of `demo/`, with the programs and the port of this test. */
function manifest(file) {
  const text = readFileSync(join(root, "demo", file), "utf8")
    .replaceAll("target/release/bookinfo", join(programs, "bookinfo"))
    .replaceAll("workingDirectory: ..", "workingDirectory: .")
    .replaceAll("port: 8080", `port: ${ingress}`);
  return mesh.file(file, text);
}

before(async () => {
  ingress = await freePort();
  mesh.up(manifest("mesh.yaml"));
  const at = `http://127.0.0.1:${ingress}`;
  mesh.ask(`${at}/bookinfo-ratings/${RATING}`, `${at}/productpage`);
});

after(() => mesh.down());

test("a policy denies a call, the console shows it and says why, and it turns green when it is allowed", async () => {
  const { page, problems } = await mesh.open();
  await page.waitForSelector(edge("ok"), shown);
  assert.doesNotMatch(page.url(), /code=/, "the code is taken out of the address");

  mesh.tulle("apply", manifest("deny-ratings.yaml"));
  await page.waitForSelector(edge("denied"), shown);
  await page.click(`.edge-label[data-label="${EDGE}"]`);
  await page.waitForFunction(() => document.querySelector(".panel")?.textContent.includes("may not call"));
  const why = await page.textContent(".panel");
  assert.match(why, /gateway may not call ratings/);
  assert.match(why, /TrafficTarget\/ratings/);
  assert.match(why, /source not listed/);
  await page.waitForFunction(() => document.querySelector(".panel")?.textContent.includes("What to do"));

  mesh.tulle("apply", manifest("mesh.yaml"));
  await page.waitForFunction(() => document.querySelector(".panel").textContent.includes("gateway may call ratings"));
  // Green is a minute without a refusal.
  if (!process.env.SHORT) await page.waitForSelector(edge("ok"), { ...shown, timeout: 120_000 });
  if (process.env.SHOT) await page.screenshot({ path: process.env.SHOT });
  assert.deepEqual(problems, []);
});
