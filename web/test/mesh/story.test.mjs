/**
 * The demo's story on a mesh that is up: deny, see a red edge, learn why, allow, see it turn green. The programs are
 * those of target/debug, or of the directory that TULLE_PROGRAMS names.
 */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { browser } from "../../dev/chromium.mjs";

const root = resolve(fileURLToPath(import.meta.url), "../../../..");
const programs = resolve(process.env.TULLE_PROGRAMS ?? join(root, "target/debug"));
const RATING = "ratings/2099a055-1e21-46ef-825e-9e0de93554ea";
const EDGE = "service/gateway>service/ratings";
const edge = (tone) => `.edge.tone-${tone}[data-edge="${EDGE}"]`;

const directory = mkdtempSync(join(tmpdir(), "tulle-console-"));
const name = `c${process.pid.toString(16)}`;
let ingress;
let chrome;
let asking;

function tulle(...words) {
  const env = { ...process.env, TULLE_STATE: join(directory, "state"), TULLE_NAME: name };
  return execFileSync(join(programs, "tulle"), words, { cwd: directory, env, encoding: "utf8" });
}

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((listening) => server.once("listening", listening));
  const { port } = server.address();
  await new Promise((closed) => server.close(closed));
  return port;
}

/** A file of `demo/`, with the programs and the port of this test. */
function manifest(file) {
  const text = readFileSync(join(root, "demo", file), "utf8")
    .replaceAll("target/release/bookinfo", join(programs, "bookinfo"))
    .replaceAll("workingDirectory: ..", "workingDirectory: .")
    .replaceAll("port: 8080", `port: ${ingress}`);
  writeFileSync(join(directory, file), text);
  return join(directory, file);
}

before(async () => {
  ingress = await freePort();
  tulle("up", "--detach", manifest("mesh.yaml"), "--loopback", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0");
  const ask = (path) => fetch(`http://127.0.0.1:${ingress}/${path}`).then((answer) => answer.text());
  asking = setInterval(() => {
    ask(`bookinfo-ratings/${RATING}`).catch(() => {});
    ask("productpage").catch(() => {});
  }, 100);
  chrome = await browser();
});

after(async () => {
  clearInterval(asking);
  await chrome?.close();
  tulle("down", "--purge");
  rmSync(directory, { recursive: true, force: true });
});

test("a policy denies a call, the console shows it and says why, and it turns green when it is allowed", async () => {
  const page = await chrome.newPage({ viewport: { width: 1440, height: 900 }, locale: "en-GB" });
  page.setDefaultTimeout(60_000);
  const problems = [];
  page.on("pageerror", (error) => problems.push(error.message));
  page.on("console", (line) => line.type() === "error" && problems.push(line.text()));
  const address = tulle("dashboard", "--print-url").trim();
  const elsewhere = new Set();
  page.on("request", (request) => {
    if (!request.url().startsWith(new URL(address).origin) && !request.url().startsWith("data:")) {
      elsewhere.add(request.url());
    }
  });
  await page.goto(address);
  await page.waitForSelector(edge("ok"));
  assert.doesNotMatch(page.url(), /code=/, "the code is taken out of the address");

  tulle("apply", manifest("deny-ratings.yaml"));
  await page.waitForSelector(edge("denied"));
  await page.click(`.edge-label[data-label="${EDGE}"]`);
  await page.waitForFunction(() => document.querySelector(".panel")?.textContent.includes("may not call"));
  const why = await page.textContent(".panel");
  assert.match(why, /gateway may not call ratings/);
  assert.match(why, /TrafficTarget\/ratings/);
  assert.match(why, /source not listed/);
  await page.waitForFunction(() => document.querySelector(".panel")?.textContent.includes("What to do"));

  tulle("apply", manifest("mesh.yaml"));
  await page.waitForFunction(() => document.querySelector(".panel").textContent.includes("gateway may call ratings"));
  await page.waitForSelector(edge("ok"), { timeout: 120_000 });
  if (process.env.SHOT) await page.screenshot({ path: process.env.SHOT });
  assert.deepEqual(problems, []);
  assert.deepEqual([...elsewhere], []);
});
