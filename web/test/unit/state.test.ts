import assert from "node:assert/strict";
import { test } from "node:test";
import { refusal } from "../../src/api/client.ts";
import { pause } from "../../src/api/stream.ts";
import type { GraphDelta, Mark } from "../../src/api/types.ts";
import { isOf } from "../../src/pages/objects.tsx";
import { applied, type GraphData, withMark } from "../../src/state/mesh.ts";
import { href, nodeHref, parse } from "../../src/state/route.ts";
import { codeOf } from "../../src/state/session.ts";
import { pruned } from "../../src/ui/json.tsx";
import { sorted } from "../../src/ui/table.tsx";
import { clustered } from "../../src/ui/timeline.tsx";
import { lineParts } from "../../src/ui/yaml.tsx";
import { edge, node } from "./samples.ts";

const coverage = { proxies: 1, reporting: 1, since: 0 };
const empty: GraphData = { at: 0, nodes: new Map(), edges: new Map(), rest: null, coverage };

function delta(more: Partial<GraphDelta>): GraphDelta {
  return {
    revision: 1,
    at: 1,
    nodes: [],
    removedNodes: [],
    edges: [],
    removedEdges: [],
    rest: null,
    coverage,
    ...more,
  };
}

test("a delta changes what it names and nothing else", () => {
  const [a, b] = [node("service/a"), node("service/b")];
  const first = applied(empty, delta({ whole: true, nodes: [a, b], edges: [edge(a.id, b.id)] }));
  const changed = { ...b, ready: 0 };
  const second = applied(first, delta({ at: 6, nodes: [changed] }));
  assert.equal(second.nodes.get(a.id), a);
  assert.equal(second.nodes.get(b.id), changed);
  assert.equal(first.nodes.get(b.id), b, "the graph before stays as it was");
  const third = applied(second, delta({ removedNodes: [b.id], removedEdges: ["service/a>service/b"] }));
  assert.deepEqual([...third.nodes.keys()], [a.id]);
  assert.equal(third.edges.size, 0);
  assert.equal(applied(third, delta({ whole: true, nodes: [b] })).nodes.size, 1);
});

test("marks are kept in order, once, and no longer than the history", () => {
  const mark = (at: number, what = "x"): Mark => ({ at, kind: "object", what, verb: "changed", who: "" });
  const marks = [mark(950), mark(960, "y"), mark(960, "y"), mark(10)].reduce(
    (all, m) => withMark(all, m, 1000),
    [] as Mark[],
  );
  assert.deepEqual(
    marks.map((m) => m.at),
    [10, 950, 960],
  );
  assert.deepEqual(
    withMark(marks, mark(970), 1000).map((m) => m.at),
    [950, 960, 970],
  );
  const clusters = clustered([mark(500), mark(501), mark(900)], 1000);
  assert.deepEqual(
    clusters.map((c) => c.marks.length),
    [2, 1],
  );
});

test("pauses between attempts grow, and have a limit", () => {
  assert.equal(pause(0, 0), 1000);
  assert.equal(pause(2, 0), 4000);
  assert.equal(pause(30, 1), 18_000);
});

test("addresses are read as they are written", () => {
  const target = href(["proxies", "spiffe://t/svc/a#1"], { tab: "config", empty: null });
  assert.deepEqual(parse(target).parts, ["proxies", "spiffe://t/svc/a#1"]);
  assert.equal(parse(target).query.get("tab"), "config");
  assert.deepEqual(parse("").parts, ["graph"]);
  assert.deepEqual(parse("#/%E0%A4%A").parts, ["%E0%A4%A"], "an address that cannot be decoded does no harm");
  assert.equal(nodeHref("service/a.shop"), "#/services/service%2Fa.shop");
  assert.equal(nodeHref("outside"), null);
});

test("only a one-time code is taken for one", () => {
  assert.equal(codeOf("#code=0a1B"), "0a1B");
  assert.equal(codeOf("#/graph?code=1"), null);
  assert.equal(codeOf("#code=<script>"), null);
});

test("a refusal keeps its code and cure; other answers are told by their status", () => {
  const told = refusal(404, '{"error":{"code":"not_found","message":"m","fix":"f"}}');
  assert.deepEqual([told.code, told.message, told.fix], ["not_found", "m", "f"]);
  assert.equal(refusal(502, "<html>").code, "http_502");
});

test("a manifest is coloured without a change of its text", () => {
  const lines = [
    "kind: TrafficTarget",
    "  - name: a  # why",
    "# note",
    "---",
    '  "x:y": 1',
    "      /productpage",
    "ports: [1, 2]",
    "",
  ];
  for (const line of lines)
    assert.equal(
      lineParts(line)
        .map((part) => part.text)
        .join(""),
      line,
    );
  assert.equal(lineParts("  port: 8101")[1]?.kind, "yaml-key");
  assert.equal(lineParts("  port: 8101")[3]?.kind, "yaml-number");
});

test("a filter over configuration keeps the way to what it finds", () => {
  const value = { inbound: { ports: [80] }, outbound: [{ name: "ratings" }, { name: "details" }] };
  assert.deepEqual(pruned(value, "ratings"), { outbound: [{ name: "ratings" }] });
  assert.deepEqual(pruned(value, "inbound"), { inbound: { ports: [80] } });
  assert.equal(pruned(value, "nothing"), undefined);
});

test("rows are sorted as numbers or as texts, and kinds belong to one list", () => {
  const column = { id: "n", name: "n", render: () => "", sort: (row: { n: number }) => row.n };
  assert.deepEqual(sorted([{ n: 10 }, { n: 9 }], column, false), [{ n: 9 }, { n: 10 }]);
  assert.deepEqual(sorted([{ n: 9 }, { n: 10 }], column, true), [{ n: 10 }, { n: 9 }]);
  assert.equal(isOf("policies", "RateLimit"), true);
  assert.equal(isOf("policies", "HTTPRoute"), false);
  assert.equal(isOf("routes", "HTTPRoute"), true);
  assert.equal(isOf("policies", "Workload"), false);
});
