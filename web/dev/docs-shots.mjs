/** Takes pictures of pages of the documentation: `node dev/docs-shots.mjs [PAGE …]` into web/dev/shots, after `make docs`. */
import { mkdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { browser } from "./chromium.mjs";

const BOOKS = new URL("../../build/docs/", import.meta.url);
const SHOTS = fileURLToPath(new URL("./shots/", import.meta.url));
const SIZES = { wide: { width: 1280, height: 900 }, narrow: { width: 375, height: 740 } };

const words = process.argv.slice(2);
const pages = words.length ? words : ["index", "concepts/decision", "reasons", "features/access", "cli"];
mkdirSync(SHOTS, { recursive: true });
const chrome = await browser();
for (const language of ["en", "zh"]) {
  for (const [size, viewport] of Object.entries(SIZES)) {
    for (const colorScheme of ["light", "dark"]) {
      const context = await chrome.newContext({ viewport, colorScheme });
      const page = await context.newPage();
      for (const name of pages) {
        await page.goto(new URL(`${language}/${name}.html`, BOOKS).href);
        await page.screenshot({
          path: `${SHOTS}docs-${name.replaceAll("/", "-")}-${language}-${size}-${colorScheme}.png`,
        });
      }
      await context.close();
    }
  }
}
await chrome.close();
