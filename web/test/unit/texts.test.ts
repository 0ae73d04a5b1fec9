import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import reasons from "virtual:reasons";
import { en } from "../../src/i18n/en.ts";
import { chinese as findings } from "../../src/i18n/findings-zh.ts";
import { bytes, fill, milliseconds, percent } from "../../src/i18n/index.ts";
import { detailOf } from "../../src/i18n/reasons.ts";
import { chinese } from "../../src/i18n/reasons-zh.ts";
import { zh } from "../../src/i18n/zh.ts";

const holes = (text: string) => [...text.matchAll(/\{(\w+)\}/g)].map((m) => m[1]).sort();
const quoted = (text: string) => (text.match(/`/g) ?? []).length;

test("both languages have the same texts, with the same holes to fill", () => {
  assert.deepEqual(Object.keys(zh).sort(), Object.keys(en).sort());
  for (const [key, text] of Object.entries(en)) {
    const other = zh[key as keyof typeof en];
    assert.ok(other.trim(), key);
    assert.deepEqual(holes(other), holes(text), key);
    assert.equal(quoted(other) % 2, 0, key);
  }
});

test("texts are Chinese where they are not a name or a figure", () => {
  const names = /^[A-Z0-9\s%{}/.:，（）-]*$|English/;
  for (const [key, text] of Object.entries(zh)) {
    const plain = text.replace(/\{\w+\}/g, "");
    assert.ok(/[\u4e00-\u9fff]/.test(text) || names.test(plain), `${key}: ${text}`);
  }
});

test("every text is used", () => {
  const sources = readdirSync("src", { recursive: true, encoding: "utf8" })
    .filter((path) => /\.tsx?$/.test(path) && !path.startsWith("i18n/en") && !path.startsWith("i18n/zh"))
    .map((path) => readFileSync(`src/${path}`, "utf8"))
    .join("\n");
  const composed = [...sources.matchAll(/(?:`([\w.]+)\.\$\{|word\("([\w.]+)")/g)].map((m) => `${m[1] ?? m[2]}.`);
  const unused = Object.keys(en).filter(
    (key) =>
      !sources.includes(`"${key}"`) &&
      !composed.some((prefix) => key.startsWith(prefix) && !key.slice(prefix.length).includes(".")),
  );
  assert.deepEqual(unused, []);
});

test("every finding of the documentation is explained in Chinese", () => {
  const documented = [...readFileSync("../docs/findings.md", "utf8").matchAll(/^\| `(TL\d+)` \|/gm)].map((m) => m[1]);
  assert.ok(documented.length >= 30, "docs/findings.md was read");
  assert.deepEqual(Object.keys(findings).sort(), documented.sort());
  for (const [code, text] of Object.entries(findings)) {
    for (const part of Object.values(text)) {
      assert.match(part, /[\u4e00-\u9fff]/, code);
      assert.equal(quoted(part) % 2, 0, code);
    }
  }
});

test("every reason code of the documentation is explained in Chinese", () => {
  assert.ok(Object.keys(reasons).length >= 30, "docs/reasons.md was read");
  assert.deepEqual(
    Object.keys(chinese).sort(),
    Object.keys(reasons)
      .filter((code) => code in chinese)
      .sort(),
  );
  // The second table is about TLS handshakes; its codes are details of `tls_failed`.
  const first = readFileSync("../docs/reasons.md", "utf8").split("## TLS")[0]!;
  const codes = [...first.matchAll(/^\| `(\w+)` \|/gm)].map((m) => m[1]);
  assert.deepEqual(
    codes.filter((code) => !chinese[code!]),
    [],
  );
  assert.match(reasons.denied!.fix, /tulle why/);
});

test("what a proxy adds to a cause is not lost in translation", () => {
  assert.equal(detailOf("handshake failed: `x` (expired)", "handshake failed: x"), "(expired)");
  assert.equal(detailOf("another text", "handshake failed"), "");
  assert.equal(detailOf("", "handshake failed"), "");
});

test("figures never look better than they are", () => {
  assert.equal(percent(0.99999), "99.9%");
  assert.equal(percent(1), "100%");
  assert.equal(percent(0), "0%");
  assert.equal(percent(null), "–");
  assert.equal(milliseconds(1234), "1.23 s");
  assert.equal(bytes(5 * 1024 * 1024), "5 MiB");
  assert.equal(fill("{a} of {b}", { a: 1 }), "1 of {b}");
});
