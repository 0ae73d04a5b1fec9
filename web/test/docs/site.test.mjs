/** The documentation's books as `make docs` made them, opened from files: nothing is asked of any host. */
import assert from "node:assert/strict";
import { existsSync, readdirSync } from "node:fs";
import { join, relative } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { browser } from "../../dev/chromium.mjs";

const BOOKS = fileURLToPath(new URL("../../../build/docs/", import.meta.url));
const PHONE = { width: 375, height: 740 };

/** Every page of a book, by its path in it. */
function pages(language) {
  const book = join(BOOKS, language);
  const all = readdirSync(book, { recursive: true }).filter((name) => name.endsWith(".html") && name !== "toc.html");
  return all.sort();
}

const address = (page) => pathToFileURL(join(BOOKS, page)).href;

let chrome;
let faults;

/** Opens a page and notes what goes wrong in it. */
async function open(page, options = {}) {
  const context = await chrome.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const tab = await context.newPage();
  tab.on("request", (request) => {
    if (!request.url().startsWith("file:") && !request.url().startsWith("data:"))
      faults.push(`${page} asks for ${request.url()}`);
  });
  tab.on("console", (line) => line.type() === "error" && faults.push(`${page}: ${line.text()}`));
  tab.on("pageerror", (error) => faults.push(`${page}: ${error.message}`));
  await tab.goto(address(page));
  return tab;
}

async function search(tab, question) {
  await tab.click("#mdbook-search-toggle");
  await tab.fill("#mdbook-searchbar", question);
  await tab.press("#mdbook-searchbar", "End");
  await tab.waitForFunction(() => document.querySelector("#mdbook-searchresults-header").textContent !== "");
  return tab.$$eval("#mdbook-searchresults li", (items) =>
    items.map((item) => ({
      title: item.querySelector("a").textContent,
      href: item.querySelector("a").getAttribute("href"),
      marked: [...item.querySelectorAll("em")].map((mark) => mark.textContent),
      length: item.querySelector(".teaser").textContent.length,
    })),
  );
}

before(async () => {
  assert.ok(existsSync(join(BOOKS, "zh/index.html")), "make docs has made the books");
  chrome = await browser();
});
after(() => chrome?.close());

describe("the documentation", () => {
  for (const language of ["en", "zh"]) {
    test(`no page of ${language} is wider than a phone, or asks anybody for anything`, async () => {
      faults = [];
      const all = pages(language);
      assert.ok(all.length > 100, `${all.length} pages`);
      const tab = await open(`${language}/index.html`, { viewport: PHONE });
      for (const page of all) {
        await tab.goto(address(join(language, page)));
        const { wide, view } = await tab.evaluate(() => ({
          wide: document.documentElement.scrollWidth,
          view: document.documentElement.clientWidth,
        }));
        if (wide > view) faults.push(`${language}/${page} is ${wide} wide on a screen of ${view}`);
      }
      await tab.context().close();
      assert.deepEqual(faults, []);
    });
  }

  test("the English book is searched", async () => {
    faults = [];
    const tab = await open("en/index.html");
    const found = await search(tab, "circuit_open");
    assert.ok(
      found.some(({ href }) => href.startsWith("reasons.html")),
      JSON.stringify(found),
    );
    await tab.context().close();
    assert.deepEqual(faults, []);
  });

  test("the Chinese book finds words within sentences, marks them, and leads there", async () => {
    faults = [];
    const tab = await open("zh/index.html");
    const found = await search(tab, "随机提前");
    assert.ok(found.length > 0);
    assert.match(found[0].href, /^concepts\/rotation\.html/);
    assert.deepEqual(found[0].marked, ["随机提前"]);
    for (const { length } of found) assert.ok(length < 150, `a teaser of ${length} characters`);
    assert.match(await tab.textContent("#mdbook-searchresults-header"), /条结果/);
    await tab.click("#mdbook-searchresults li:first-child a");
    await tab.waitForSelector("main mark");
    assert.equal(await tab.textContent("main mark"), "随机提前");
    await tab.context().close();
    assert.deepEqual(faults, []);
  });

  test("the switch of languages leads to the same heading, there and back", async () => {
    faults = [];
    const tab = await open("en/concepts/rotation.html");
    await tab.evaluate(() => {
      location.hash = "#the-root";
    });
    await tab.click("#language-switch");
    assert.equal(relative(BOOKS, fileURLToPath(tab.url())), "zh/concepts/rotation.html");
    assert.match(tab.url(), /#the-root$/);
    assert.equal(await tab.textContent("#the-root"), "根");
    assert.equal(await tab.getAttribute("html", "lang"), "zh");
    await tab.click("#language-switch");
    assert.match(tab.url(), /\/en\/concepts\/rotation\.html#the-root$/);
    await tab.context().close();
    assert.deepEqual(faults, []);
  });

  test("dark follows the system, and can be chosen", async () => {
    faults = [];
    const ground = (tab) => tab.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    const light = await open("en/index.html", { colorScheme: "light" });
    const dark = await open("en/index.html", { colorScheme: "dark" });
    const [bright, dim] = [await ground(light), await ground(dark)];
    assert.notEqual(bright, dim);
    await light.click("#mdbook-theme-toggle");
    await light.click("#mdbook-theme-navy");
    assert.equal(await ground(light), dim);
    const themes = await light.$$eval("#mdbook-theme-list button", (buttons) =>
      buttons.map((button) => button.textContent),
    );
    assert.deepEqual(themes, ["Auto", "Light", "Dark"]);
    await light.context().close();
    await dark.context().close();
    assert.deepEqual(faults, []);
  });
});
