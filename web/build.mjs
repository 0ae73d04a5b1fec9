/**
 * Builds the page: `node build.mjs [--out FOLDER] [--check]`. The same sources give the same bytes.
 *
 * The names of assets carry a hash of their content, so that browsers may keep them for good.
 */
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
export const PAGE = join(HERE, "../crates/console/page");

/** Reads the table of `docs/reasons.md`: the page then says the same as the documentation. */
export function reasons() {
  const text = readFileSync(join(HERE, "../docs/reasons.md"), "utf8");
  const plain = (cell) => cell.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1");
  const found = {};
  for (const line of text.split("\n")) {
    const [, codes, , , cause, fix] = line.split("|").map((cell) => cell.trim());
    if (cause !== undefined && fix !== undefined && codes.startsWith("`")) {
      found[codes.replaceAll("`", "")] = { cause: plain(cause), fix: plain(fix) };
    }
  }
  return found;
}

export const reasonsPlugin = {
  name: "reasons",
  setup(on) {
    on.onResolve({ filter: /^virtual:reasons$/ }, () => ({ path: "reasons", namespace: "virtual" }));
    on.onLoad({ filter: /.*/, namespace: "virtual" }, () => ({ contents: JSON.stringify(reasons()), loader: "json" }));
  },
};

async function bundled(entry, define) {
  const result = await build({
    entryPoints: [join(HERE, entry)],
    absWorkingDir: HERE,
    bundle: true,
    minify: true,
    write: false,
    outdir: "out",
    format: entry.includes("worker") ? "iife" : "esm",
    target: ["es2022", "chrome111", "firefox115", "safari16.4"],
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "none",
    charset: "utf8",
    define,
    plugins: [reasonsPlugin],
  });
  return result.outputFiles.map((file) => ({ ext: file.path.split(".").pop(), text: file.text }));
}

const hashed = (name, ext, text) =>
  `assets/${name}-${createHash("sha256").update(text).digest("hex").slice(0, 10)}.${ext}`;

/** Returns the page's files by name. */
export async function pageFiles() {
  const files = new Map();
  const add = (name, { ext, text }) => {
    const path = hashed(name, ext, text);
    files.set(path, text);
    return path;
  };
  const [worker] = await bundled("src/graph/layout.worker.ts", {});
  const layout = add("layout", worker);
  const main = await bundled("src/main.tsx", { LAYOUT_WORKER: JSON.stringify(`/${layout}`) });
  const paths = Object.fromEntries(main.map((file) => [file.ext, add("console", file)]));
  const html = readFileSync(join(HERE, "src/index.html"), "utf8");
  files.set("index.html", html.replace("{{js}}", `/${paths.js}`).replace("{{css}}", `/${paths.css}`));
  files.set("favicon.svg", readFileSync(join(HERE, "src/favicon.svg"), "utf8"));
  return files;
}

export function write(files, folder) {
  rmSync(folder, { recursive: true, force: true });
  for (const [path, text] of files) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), text);
  }
}

/** All of the page, compressed as the controller sends it, may have so many bytes. */
const BUDGET = 300 * 1024;

/** Returns what is wrong with the committed page: files that differ from a fresh build, and too large a size. */
export function faults(files, folder) {
  const found = [];
  const committed = readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(folder, join(entry.parentPath ?? entry.path, entry.name)));
  for (const path of committed) if (!files.has(path)) found.push(`${path} is not made by these sources`);
  for (const [path, text] of files) {
    if (!committed.includes(path)) found.push(`${path} is missing`);
    else if (readFileSync(join(folder, path), "utf8") !== text) found.push(`${path} differs`);
  }
  if (found.length) found.push("run web/check.sh --write and commit crates/console/page");
  const size = [...files.values()].reduce((sum, text) => sum + gzipSync(text, { level: 9 }).length, 0);
  console.log(`The page has ${(size / 1024).toFixed(1)} KiB compressed, of ${BUDGET / 1024}.`);
  if (size > BUDGET) found.push(`the page is too large: ${size} bytes compressed of ${BUDGET}`);
  return found;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const words = process.argv.slice(2);
  const files = await pageFiles();
  if (words.includes("--check")) {
    const found = faults(files, PAGE);
    for (const fault of found) console.error(fault);
    process.exit(found.length ? 1 : 0);
  }
  write(files, words.includes("--out") ? words[words.indexOf("--out") + 1] : PAGE);
}
