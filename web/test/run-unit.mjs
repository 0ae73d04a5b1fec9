/** Compiles the unit tests and runs them by Node's own runner. */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";
import { reasonsPlugin } from "../build.mjs";

/** A browser's globals that modules touch when they are loaded. */
const BROWSER = `
  globalThis.location ??= { hash: "", pathname: "/" };
  globalThis.matchMedia ??= () => ({ matches: false, addEventListener() {} });
  globalThis.addEventListener ??= () => {};
  globalThis.navigator ??= { language: "en" };
`;

const folder = mkdtempSync(join(process.cwd(), "dist-"));
const tests = readdirSync("test/unit").filter((name) => name.endsWith(".test.ts"));
await build({
  entryPoints: tests.map((name) => `test/unit/${name}`),
  outdir: folder,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  platform: "node",
  format: "esm",
  jsx: "automatic",
  jsxImportSource: "preact",
  banner: { js: BROWSER },
  loader: { ".css": "empty" },
  plugins: [reasonsPlugin],
});
const run = spawnSync(process.execPath, ["--test", ...tests.map((name) => join(folder, name.replace(".ts", ".mjs")))], {
  stdio: "inherit",
});
rmSync(folder, { recursive: true });
process.exit(run.status ?? 1);
