import assert from "node:assert/strict";
import { test } from "node:test";
import type { Edge, MeshNode } from "../../src/api/types.ts";
import { draw, LIMIT, type Options, OWN_HOST } from "../../src/graph/model.ts";
import { edge, node } from "./samples.ts";

const ALL: Options = { grouping: "none", expanded: new Set(), search: "", show: "all", hideIdle: false };

function many(count: number): { nodes: MeshNode[]; edges: Edge[] } {
  const nodes = Array.from({ length: count }, (_, i) => node(`service/s${i}.n${i % 10}`, { namespace: `n${i % 10}` }));
  const edges = nodes.slice(1).map((n, i) => edge(nodes[i]!.id, n.id, { rate: 1 + (i % 7) }));
  return { nodes, edges };
}

test("a small mesh is drawn node by node", () => {
  const drawn = draw([node("service/a"), node("service/b")], [edge("service/a", "service/b")], ALL);
  assert.deepEqual(
    drawn.nodes.map((n) => n.id),
    ["service/a", "service/b"],
  );
  assert.deepEqual(
    drawn.edges.map((e) => e.members),
    [["service/a>service/b"]],
  );
  assert.equal(drawn.collapsed, false);
});

test("too many nodes are groups, whose calls are summed", () => {
  const { nodes, edges } = many(1000);
  const drawn = draw(nodes, edges, ALL);
  assert.equal(drawn.collapsed, true);
  assert.equal(drawn.grouping, "namespace");
  assert.equal(drawn.nodes.length, 10);
  const total = drawn.edges.reduce((sum, e) => sum + e.rate, 0);
  assert.equal(
    total,
    edges.reduce((sum, e) => sum + e.rate, 0),
    "every call leads to another namespace here",
  );
});

test("an open group shows its members, and never more than can be laid out", () => {
  const { nodes, edges } = many(1000);
  const open = draw(nodes, edges, { ...ALL, expanded: new Set(["group/n3"]) });
  assert.equal(open.nodes.filter((n) => n.group === "group/n3").length, 100);
  const one = nodes.map((n) => ({ ...n, namespace: "all", hosts: ["h"] }));
  const crowded = draw(one, edges, { ...ALL, grouping: "namespace", expanded: new Set(["group/all"]) });
  assert.ok(crowded.nodes.length <= LIMIT, `${crowded.nodes.length} nodes`);
  assert.equal(crowded.nodes.find((n) => n.kind === "more")?.count, 1000 - (LIMIT - 30));
});

test("members in trouble are never among those left out", () => {
  const { nodes, edges } = many(1000);
  const one = nodes.map((n, i) => ({ ...n, namespace: "all", health: i === 999 ? ("error" as const) : n.health }));
  const drawn = draw(one, edges, { ...ALL, grouping: "namespace", expanded: new Set(["group/all"]) });
  assert.ok(drawn.nodes.some((n) => n.id === one[999]!.id));
});

test("a search keeps the neighbours of what it finds", () => {
  const nodes = ["a", "b", "c", "d"].map((n) => node(`service/${n}`));
  const edges = [edge("service/a", "service/b"), edge("service/c", "service/d")];
  const drawn = draw(nodes, edges, { ...ALL, search: "b" });
  assert.deepEqual(
    drawn.nodes.map((n) => n.id),
    ["service/a", "service/b"],
  );
});

test("the filter of denied calls shows nothing else", () => {
  const nodes = ["a", "b", "c"].map((n) => node(`service/${n}`));
  const edges = [edge("service/a", "service/b", { denied: 1 }), edge("service/b", "service/c")];
  const drawn = draw(nodes, edges, { ...ALL, show: "denied" });
  assert.deepEqual(
    drawn.edges.map((e) => e.id),
    ["service/a>service/b"],
  );
  assert.equal(drawn.nodes.length, 2);
});

test("a sum of calls is as bad as its worst, and its success is weighted", () => {
  const nodes = [...many(200).nodes, node("service/x.m", { namespace: "m" }), node("service/y.m", { namespace: "m" })];
  const edges = [
    edge("service/x.m", "service/s0.n0", { rate: 9, success: 1 }),
    edge("service/y.m", "service/s0.n0", { rate: 1, success: 0, denied: 1, health: "error", mtls: "none" }),
  ];
  const [sum] = draw(nodes, edges, ALL).edges;
  assert.equal(sum?.success, 0.9);
  assert.equal(sum?.denied, 1);
  assert.equal(sum?.mtls, "some");
  assert.equal(sum?.health, "error");
});

test("one failing member of fifty does not make a group red", () => {
  const { nodes, edges } = many(500);
  nodes[0]!.health = "error";
  const group = draw(nodes, edges, ALL).nodes.find((n) => n.id === "group/n0");
  assert.equal(group?.health, "warning");
  assert.equal(group?.troubled, 1);
});

test("a host without a name is the controller's own", () => {
  const drawn = draw([node("service/a", { hosts: [] }), node("outside", { kind: "outside", hosts: [] })], [], {
    ...ALL,
    grouping: "host",
  });
  assert.deepEqual(
    drawn.boxes.map((box) => [box.name, box.members]),
    [[OWN_HOST, ["service/a"]]],
  );
});
