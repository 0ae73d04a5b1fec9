/** A mesh of this machine, whose console Chromium looks at. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { browser } from "../../dev/chromium.mjs";

export const root = resolve(fileURLToPath(import.meta.url), "../../../..");
/** Where `tulle` and `bookinfo` are. */
export const programs = resolve(process.env.TULLE_PROGRAMS ?? join(root, "target/debug"));

let meshes = 0;

export class Mesh {
  constructor() {
    this.directory = mkdtempSync(join(tmpdir(), "tulle-console-"));
    meshes += 1;
    this.name = `c${process.pid.toString(16)}${meshes}`;
  }

  /** Runs a command about this mesh. */
  tulle(...words) {
    const env = { ...process.env, TULLE_STATE: join(this.directory, "state"), TULLE_NAME: this.name };
    return execFileSync(join(programs, "tulle"), words, { cwd: this.directory, env, encoding: "utf8" });
  }

  /** Writes a manifest into its directory. */
  file(name, text) {
    writeFileSync(join(this.directory, name), text);
    return join(this.directory, name);
  }

  up(manifest) {
    this.tulle("up", "--detach", manifest, "--loopback", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0");
  }

  /** Asks for these addresses again and again. */
  ask(...addresses) {
    this.asking = setInterval(() => {
      for (const address of addresses) {
        fetch(address)
          .then((answer) => answer.text())
          .catch(() => {});
      }
    }, 100);
  }

  /** Its console in Chromium, and what goes wrong in the page. */
  async open() {
    this.chrome = await browser();
    const page = await this.chrome.newPage({ viewport: { width: 1440, height: 900 }, locale: "en-GB" });
    page.setDefaultTimeout(60_000);
    const address = this.tulle("dashboard", "--print-url").trim();
    const problems = [];
    page.on("pageerror", (error) => problems.push(error.message));
    page.on("console", (line) => line.type() === "error" && problems.push(line.text()));
    page.on("request", (request) => {
      const own = request.url().startsWith(new URL(address).origin) || request.url().startsWith("data:");
      if (!own) problems.push(`request to ${request.url()}`);
    });
    await page.goto(address);
    return { page, problems };
  }

  async down() {
    clearInterval(this.asking);
    await this.chrome?.close();
    this.tulle("down", "--purge");
    rmSync(this.directory, { recursive: true, force: true });
  }
}

export async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((listening) => server.once("listening", listening));
  const { port } = server.address();
  await new Promise((closed) => server.close(closed));
  return port;
}
