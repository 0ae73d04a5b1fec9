/**
 * Faults of a mesh that is up, brought about as they come in nature. Beginning with nothing but the URL, the cause of each
 * and what to do must be at most three clicks away.
 */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { chmodSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { freePort, Mesh, programs } from "./mesh.mjs";

const mesh = new Mesh();
const http = await freePort();
const ports = { HTTPS: await freePort(), HTTP: http };
for (const name of ["SLOW", "FLAKY", "GONE"]) ports[name] = await freePort();
const gone = join(mesh.directory, "gone");
/** Time at which the gateway's certificate expires. */
let expiry;
let page;
let problems;

/** A certificate that expires in so many seconds, and its key. */
function certificate(seconds) {
  expiry = Date.now() + seconds * 1000;
  const time = (at) =>
    new Date(at)
      .toISOString()
      .replace(/\..*|[-:T]/g, "")
      .concat("Z");
  const at = (file) => join(mesh.directory, file);
  const openssl = (...words) => execFileSync("openssl", words, { cwd: mesh.directory, stdio: "pipe" });
  writeFileSync(at("index"), "");
  writeFileSync(
    at("ca.conf"),
    "[ca]\ndefault_ca=own\n[own]\ndatabase=index\nnew_certs_dir=.\nrand_serial=yes\ndefault_md=sha256\npolicy=any\nx509_extensions=ext\n[any]\ncommonName=supplied\n[ext]\nsubjectAltName=DNS:localhost\n",
  );
  openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key.sec1");
  openssl("pkcs8", "-topk8", "-nocrypt", "-in", "key.sec1", "-out", "key.pem");
  openssl("req", "-new", "-key", "key.pem", "-subj", "/CN=localhost", "-out", "request.pem");
  openssl(
    ...["ca", "-batch", "-selfsign", "-config", "ca.conf", "-keyfile", "key.pem", "-in", "request.pem"],
    ...["-startdate", time(Date.now() - 3600_000), "-enddate", time(expiry), "-notext", "-out", "certificate.pem"],
  );
  const base64 = (file) => readFileSync(at(file)).toString("base64");
  return { certificate: base64("certificate.pem"), key: base64("key.pem") };
}

function manifest(change = (text) => text) {
  const own = join(dirname(fileURLToPath(import.meta.url)), "faults.yaml");
  const pair = manifest.pair ?? certificate(45);
  manifest.pair = pair;
  const text = readFileSync(own, "utf8")
    .replace(/PORT_([A-Z]+)/g, (_, name) => ports[name])
    .replace("CERTIFICATE", pair.certificate)
    .replace("KEY", pair.key)
    .replace("GONE", gone)
    .replaceAll("BOOKINFO", join(programs, "bookinfo"));
  return mesh.file("faults.yaml", change(text));
}

before(async () => {
  // The workload's user looks for a file in it.
  chmodSync(mesh.directory, 0o711);
  mesh.up(manifest());
  const at = `http://127.0.0.1:${http}`;
  mesh.ask(`${at}/slow/delay/1`, `${at}/flaky/status/500`, `${at}/gone/`);
  ({ page, problems } = await mesh.open());
});

after(() => mesh.down());

const edge = (service) => `gateway/ingress>service/${service}`;

/** Waits until an edge is shown so. A horizontal line has no height, so it is not `visible`. */
const is = (service, tone) => page.waitForSelector(`.edge${tone}[data-edge="${edge(service)}"]`, { state: "attached" });

/** The panel of an edge, as soon as it says what is expected. */
async function says(service, pattern) {
  await page.click(`.edge-label[data-label="${edge(service)}"]`);
  await page.waitForFunction(
    (source) => new RegExp(source, "s").test(document.querySelector(".panel")?.textContent),
    pattern.source,
    { timeout: 90_000 },
  );
  const text = await page.textContent(".panel");
  await page.keyboard.press("Escape");
  await page.waitForSelector(".panel", { state: "detached" });
  return text;
}

test("an application that is slow is seen by its P99", async () => {
  await is("slow", "");
  await says("slow", /P99[12](\.\d+)? s/);
});

test("an open circuit is named, with what opened it", async () => {
  await is("flaky", ".tone-error");
  await says("flaky", /circuit_open.*too many requests to the destination failed.*What to do/);
});

test("a service without an endpoint that is ready is named", async () => {
  writeFileSync(gone, "");
  await is("gone", ".tone-error");
  await says("gone", /no_endpoint.*no endpoint that is ready.*What to do/);
});

test("an expired certificate is a finding, one click from the badge", async () => {
  await new Promise((passed) => setTimeout(passed, Math.max(0, expiry + 2000 - Date.now())));
  await page.waitForSelector(".findings-badge.has-errors, .findings-badge.has-warnings");
  await page.click(".findings-badge");
  await page.waitForFunction(() => /expired/.test(document.body.textContent), undefined, { timeout: 90_000 });
  const text = await page.textContent("main");
  assert.match(text, /shop/, text);
});

test("a listener whose port is taken is refused when it is applied, and changes nothing", async () => {
  const taken = createServer().listen(0, "127.0.0.1");
  await new Promise((listening) => taken.once("listening", listening));
  const listener = `{ name: more, port: ${taken.address().port}, protocol: HTTP }\n    - { name: http,`;
  const more = manifest((text) => text.replace("{ name: http,", listener));
  assert.throws(() => mesh.tulle("apply", more), /Gateway\/ingress: cannot listen on .*another process does already/s);
  taken.close();
  assert.deepEqual(problems, []);
});
