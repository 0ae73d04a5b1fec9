import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import reasons from "virtual:reasons";
import { en } from "../../src/i18n/en.ts";
import { chinese as findings } from "../../src/i18n/findings-zh.ts";
import { bytes, fill, milliseconds, percent } from "../../src/i18n/index.ts";
import { detailOf } from "../../src/i18n/reasons.ts";
import { chinese } from "../../src/i18n/reasons-zh.ts";
import { inChinese } from "../../src/i18n/sentences-zh.ts";
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

test("each sentence of the controller about a call has its Chinese", () => {
  const folder = "../crates/control/src/index/explain";
  // Parts that sentences are made of, and their ends.
  const parts = new Set([
    " or ",
    " and ",
    "; {text}",
    "{by}: ",
    " (plaintext)",
    "as TLS, ",
    "grpc {s}",
    "{name}:{port}: ",
    "{of}{name}: {}",
  ]);
  const ends =
    /^(,|at (the gateway|listener)|\{\w*\} (errors|slower)| and \{more\}|connections at|requests (at|that)|retries at)/;
  const figures = /^(\{\w*\}[\w:. %[\]()]*)+$|^rules\[/;
  let asked = 0;
  const missing: string[] = [];
  for (const file of readdirSync(folder)) {
    const source = readFileSync(`${folder}/${file}`, "utf8")
      .replace(/\/\/.*/g, "")
      .replace(/\\\n\s*/g, "");
    for (const [, text] of source.matchAll(/"((?:[^"\\]|\\.)*)"/g)) {
      if (
        !/[a-z]{2,}/.test(text!) ||
        !text!.includes(" ") ||
        parts.has(text!) ||
        ends.test(text!) ||
        figures.test(text!)
      )
        continue;
      const sample = text!.replace(/\{\w*(:\?)?\}/g, "x7");
      if (!/[\u4e00-\u9fff]/.test(inChinese(sample))) missing.push(`${file}: ${text}`);
      asked += 1;
    }
  }
  assert.deepEqual(missing, []);
  assert.ok(asked > 60, `${asked} sentences`);
});

test("sentences within sentences are Chinese, and what somebody wrote stays", () => {
  for (const [english, chinese] of [
    [
      "TrafficTarget/a allows it, but no workload of the destination is ready (no_endpoint): answered with 503",
      "TrafficTarget/a 允许它，但目标没有就绪的工作负载（no_endpoint）：以 503 应答",
    ],
    [
      "backend a:80: no policy allows it: denied with 403; backend b:80: AuthorizationPolicy/c denies it: answered with 403",
      "后端 a:80：没有策略允许它：以 403 拒绝；后端 b:80：AuthorizationPolicy/c 拒绝了它：以 403 应答",
    ],
    ["does not match: source not listed (a:80, b:80)", "不匹配：来源不在列表中（a:80, b:80）"],
    ["at listener web: does not match: port 80 not listed", "在监听器 web：不匹配：端口 80 不在列表中"],
    [
      "spiffe://a/sa/b is revoked (lost and found): every sidecar refuses its certificates",
      "spiffe://a/sa/b 已吊销（lost and found）：所有边车都拒绝它的证书",
    ],
    [
      "does not match: headers decide (`when: 'a and b' in request.headers`)",
      "不匹配：取决于请求头（`when: 'a and b' in request.headers`）",
    ],
    [
      "TrafficPolicy/a: circuit opens for 10s at 50.0% errors or 3 slower than 1s of the last 10s",
      "TrafficPolicy/a：最近 10s 中达到 50.0% 错误或 3 慢于 1s 时熔断 10s",
    ],
    [
      "3 more on connect-failure, reset, each try 1s (TrafficPolicy/a)",
      "遇到 connect-failure, reset 时再试 3 次，每次 1s（TrafficPolicy/a）",
    ],
    [
      "no Egress lets it out, and namespace shop is strict: HTTP is denied with 403, any other connection is reset",
      "没有 Egress 允许它出去，而命名空间 shop 为 strict：HTTP 以 403 拒绝，其他连接被重置",
    ],
    ["would deny (audit only): the client's address decides", "会拒绝（仅审计）：取决于客户端地址"],
    ["RateLimit/a: 10 in 1s and 5 at once", "RateLimit/a：1s 内 10 个，突发 5 个"],
    ["10.1.2.3:80 (plaintext)", "10.1.2.3:80（明文）"],
    ["something new", "something new"],
  ]) {
    assert.equal(inChinese(english!), chinese);
  }
});
