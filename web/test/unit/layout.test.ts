import assert from "node:assert/strict";
import { test } from "node:test";
import {
  along,
  around,
  centred,
  clearPlace,
  fit,
  neighbour,
  plainWay,
  smooth,
  zoomed,
} from "../../src/graph/geometry.ts";
import { gridded, isDense, isTooLong } from "../../src/graph/grid.ts";
import { isOutgrown, type Layout, NODE_HEIGHT, NODE_WIDTH, withNewNodes } from "../../src/graph/layout.ts";

const layout: Layout = {
  nodes: { a: { x: 0, y: 0 }, b: { x: 300, y: 0 } },
  edges: {},
  labels: {},
  drawn: 1,
};
const named = (...ids: string[]) => ids.map((id) => ({ id, group: null }));

test("new nodes get free places and nobody else moves", () => {
  const ids = Array.from({ length: 60 }, (_, i) => `n${i}`);
  const edges = ids.map((id) => ({ id: `a>${id}`, source: "a", destination: id }));
  const grown = withNewNodes(layout, named("a", "b", ...ids), edges);
  assert.deepEqual([grown.nodes.a, grown.nodes.b], [layout.nodes.a, layout.nodes.b]);
  const places = Object.values(grown.nodes);
  for (const [i, p] of places.entries()) {
    for (const q of places.slice(i + 1)) {
      assert.ok(Math.abs(p.x - q.x) >= NODE_WIDTH || Math.abs(p.y - q.y) >= NODE_HEIGHT, "two nodes overlap");
    }
  }
});

test("a layout to which nothing is added stays the same object", () => {
  assert.equal(withNewNodes(layout, named("a", "b"), []), layout);
  assert.equal(
    withNewNodes(layout, named("a"), []),
    layout,
    "nodes that are gone keep their place for when they return",
  );
});

test("a layout is outgrown when most edges came after it", () => {
  const edges = ["ab", "ba", "aa"].map((id) => ({ id, source: id[0]!, destination: id[1]! }));
  assert.ok(!isOutgrown(layout, edges.slice(1)));
  assert.ok(isOutgrown(layout, edges));
  assert.ok(isOutgrown({ ...layout, drawn: 0 }, edges.slice(2)), "it was made before any call was seen");
  assert.ok(!isOutgrown({ ...layout, drawn: 0 }, []));
});

test("everything fits, and zooming keeps the point below the pointer", () => {
  const view = fit(
    around([
      { x: 0, y: 0 },
      { x: 4000, y: 900 },
    ]),
    1000,
    600,
  );
  assert.ok(view.k < 1);
  const at = { x: 200, y: 100 };
  const before = { x: (at.x - view.x) / view.k, y: (at.y - view.y) / view.k };
  const after = zoomed(view, 1.5, at);
  assert.ok(Math.abs(before.x * after.k + after.x - at.x) < 1e-6);
  assert.ok(Math.abs(before.y * after.k + after.y - at.y) < 1e-6);
});

test("paths begin and end where their points do", () => {
  const way = plainWay({ x: 0, y: 0 }, { x: 500, y: 80 });
  const path = smooth(way);
  assert.ok(path.startsWith(`M${way[0]!.x},${way[0]!.y}`));
  assert.ok(path.endsWith(`L${way.at(-1)!.x},${way.at(-1)!.y}`));
  const line = [
    { x: 0, y: 0 },
    { x: 10, y: 0 },
  ];
  assert.deepEqual(along(line, 0.5), { x: 5, y: 0 });
});

test("the label of an edge that came after the layout hides under no card", () => {
  const way = plainWay({ x: 0, y: 0 }, { x: 1200, y: 0 });
  const halfway = along(way, 0.5);
  const card = (at: { x: number; y: number }) => centred(at, NODE_WIDTH, NODE_HEIGHT);
  assert.deepEqual(clearPlace(way, 98, 22, [card({ x: halfway.x, y: 200 })]), halfway, "no card is in the way");
  const at = clearPlace(way, 98, 22, [card(halfway)]);
  assert.ok(
    Math.abs(at.x - halfway.x) >= (98 + NODE_WIDTH) / 2,
    `half-way is a card, so it stands beside that: ${at.x}`,
  );
  assert.equal(at.y, 0, "still on its way");
  const everywhere = [centred(halfway, 5000, 100)];
  assert.deepEqual(clearPlace(way, 98, 22, everywhere), halfway, "without room, half-way");
});

test("arrow keys lead to the node that lies straight ahead", () => {
  const nodes = { a: { x: 0, y: 0 }, b: { x: 300, y: 10 }, c: { x: 250, y: 400 } };
  assert.equal(neighbour(nodes, "a", "right"), "b");
  assert.equal(neighbour(nodes, "a", "down"), "c");
  assert.equal(neighbour(nodes, "a", "left"), null);
});

test("a dense graph, and a long thread of nodes, are laid out as a grid without overlaps", () => {
  const nodes = named(...Array.from({ length: 20 }, (_, i) => `g${i}`));
  const edges = nodes.flatMap((a) => nodes.map((b) => ({ id: `${a.id}>${b.id}`, source: a.id, destination: b.id })));
  const request = { key: "", down: false, nodes, edges };
  assert.equal(isDense(request), true);
  assert.equal(isDense({ ...request, edges: edges.slice(0, 30) }), false);
  assert.equal(isTooLong(20, 5000, 600), true);
  assert.equal(isTooLong(20, 1400, 700), false);
  assert.equal(new Set(Object.values(gridded(request)).map((p) => `${p.x}/${p.y}`)).size, 20);
});
