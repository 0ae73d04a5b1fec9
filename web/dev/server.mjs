/**
 * Plays the controller for work on the page and for its tests: the same paths, headers and refusals, and a mesh that
 * lives (`dev/mesh.mjs`).
 *
 *     node dev/server.mjs [--watch] [--mesh bookinfo|calm|large] [--port 8900] [--actions] [--slow]
 */
import { randomBytes } from "node:crypto";
import { watch } from "node:fs";
import { createServer } from "node:http";
import { fileURLToPath } from "node:url";
import { pageFiles } from "../build.mjs";
import * as answers from "./answers.mjs";
import { bookinfo, DENIED, DENY } from "./bookinfo.mjs";
import { large } from "./large.mjs";

const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; " +
  "worker-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
const TYPES = {
  html: "text/html; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  css: "text/css; charset=utf-8",
  svg: "image/svg+xml",
};
const MESHES = { bookinfo, calm: () => bookinfo({ denied: false, faults: false }), large };
const now = () => Date.now() / 1000;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

export class Fixture {
  constructor({ mesh = "bookinfo", tick = 5000, actions = false, slow = 0, files } = {}) {
    this.mesh = MESHES[mesh]();
    this.files = files;
    this.tick = tick;
    this.actions = actions;
    this.slow = slow;
    this.codes = new Set();
    this.sessions = new Set();
    this.streams = new Set();
    this.sockets = new Set();
    this.revision = 1;
    this.requests = [];
    this.mesh.listeners.add((mark) => this.send("mark", mark));
  }

  async start(port = 0) {
    this.server = createServer((request, response) => {
      this.answer(request, response).catch((error) => {
        console.error(error);
        response.destroy();
      });
    });
    this.server.on("connection", (socket) => {
      this.sockets.add(socket);
      socket.on("close", () => this.sockets.delete(socket));
    });
    await new Promise((done) => this.server.listen(port || this.port || 0, "127.0.0.1", done));
    this.port = this.server.address().port;
    this.timer = setInterval(() => this.beat(), this.tick);
    return this;
  }

  /** Ends every connection and listens no longer. `start()` goes on at the same port. */
  async stop() {
    clearInterval(this.timer);
    for (const socket of this.sockets) socket.destroy();
    await new Promise((done) => this.server.close(done));
  }

  get origin() {
    return `http://127.0.0.1:${this.port}`;
  }

  /** An address with a one-time code, as `tulle dashboard` prints it. */
  address() {
    const code = randomBytes(16).toString("hex");
    this.codes.add(code);
    return `${this.origin}/#code=${code}`;
  }

  deny() {
    this.mesh.change(DENIED, DENY, { what: "TrafficTarget ratings" });
    this.beat();
  }

  allow() {
    this.mesh.change(DENIED, null, { what: "TrafficTarget ratings" });
    this.beat();
  }

  expire() {
    this.sessions.clear();
    this.send("end", { reason: "session_expired" });
    for (const stream of this.streams) stream.end();
  }

  /** Tells the streams that they are too slow, as the controller does. */
  shed() {
    this.send("end", { reason: "slow" });
    for (const stream of this.streams) stream.end();
  }

  /** Sends what changed since the last beat. */
  beat() {
    const graph = this.mesh.graph(now());
    const before = this.last ?? { nodes: [], edges: [] };
    const known = (list) => new Map(list.map((x) => [x.id, JSON.stringify(x)]));
    const changed = (list, old) => list.filter((x) => old.get(x.id) !== JSON.stringify(x));
    const gone = (old, list) => [...old.keys()].filter((id) => !list.some((x) => x.id === id));
    const [nodes, edges] = [known(before.nodes), known(before.edges)];
    this.revision += 1;
    this.last = graph;
    this.send("graph", {
      revision: this.revision,
      at: graph.at,
      nodes: changed(graph.nodes, nodes),
      removedNodes: gone(nodes, graph.nodes),
      edges: changed(graph.edges, edges),
      removedEdges: gone(edges, graph.edges),
      rest: graph.rest,
      coverage: graph.coverage,
    });
    this.send("findings", this.findingsCount());
  }

  findingsCount() {
    const all = this.mesh.findings();
    return { count: all.length, errors: all.filter((f) => f.severity === "error").length };
  }

  send(event, data) {
    this.sent = (this.sent ?? 0) + 1;
    for (const stream of this.streams)
      stream.write(`id: ${this.sent}\nevent: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
  }

  async answer(request, response) {
    const url = new URL(request.url, this.origin);
    this.requests.push(`${request.method} ${url.pathname}${url.search}`);
    response.setHeader("content-security-policy", CSP);
    response.setHeader("x-content-type-options", "nosniff");
    response.setHeader("referrer-policy", "no-referrer");
    if (!url.pathname.startsWith("/api/v1/")) return this.file(url.pathname, response);
    response.setHeader("cache-control", "no-store");
    const path = url.pathname.slice("/api/v1/".length);
    if (path === "session" && request.method === "POST") return this.exchange(request, response);
    const cookie = /tulle-console=(\w+)/.exec(request.headers.cookie ?? "")?.[1];
    if (!this.sessions.has(cookie))
      return refuse(response, 401, "no_session", "there is no session", "run `tulle dashboard` again");
    if (this.slow) await pause(this.slow);
    if (path === "events") return this.events(request, response);
    if (path === "tap") return this.tap(url.searchParams, request, response);
    if (path.startsWith("actions/")) return this.act(path.slice(8), request, response);
    const found = this.find(path, url.searchParams);
    if (!found)
      return refuse(
        response,
        404,
        "not_found",
        `${path} ${url.searchParams.get("name") ?? url.searchParams.get("id") ?? ""} is not there`,
        "",
      );
    return reply(response, 200, found);
  }

  file(path, response) {
    const name = path === "/" ? "index.html" : path.slice(1);
    const text = this.files.get(name);
    if (text === undefined) return reply(response, 404, {});
    response.setHeader(
      "cache-control",
      name.startsWith("assets/") ? "public, max-age=31536000, immutable" : "no-cache",
    );
    response.writeHead(200, { "content-type": TYPES[name.split(".").pop()] });
    return response.end(text);
  }

  async exchange(request, response) {
    const { code } = JSON.parse(await body(request));
    if (!this.codes.delete(code))
      return refuse(
        response,
        401,
        "bad_code",
        "The code has been used, or is older than 60 s.",
        "run `tulle dashboard` again",
      );
    const session = randomBytes(16).toString("hex");
    this.sessions.add(session);
    response.setHeader("set-cookie", `tulle-console=${session}; HttpOnly; SameSite=Strict; Path=/`);
    return reply(response, 200, {});
  }

  events(request, response) {
    response.writeHead(200, { "content-type": "text/event-stream" });
    const graph = this.mesh.graph(now());
    this.last ??= graph;
    const whole = { ...graph, whole: true, revision: this.revision, removedNodes: [], removedEdges: [] };
    response.write(`event: graph\ndata: ${JSON.stringify(whole)}\n\n`);
    response.write(`event: findings\ndata: ${JSON.stringify(this.findingsCount())}\n\n`);
    this.streams.add(response);
    request.on("close", () => this.streams.delete(response));
  }

  tap(query, request, response) {
    response.writeHead(200, { "content-type": "text/event-stream" });
    const name = (id) => id.replace(/^[a-z]+\//, "");
    const fits = (id, filter) => !filter || id === filter || name(id) === name(filter);
    const ids = [...this.mesh.calls.values()]
      .filter(
        (c) =>
          fits(c.source, query.get("source")) && fits(c.destination, query.get("destination")) && c.protocol !== "tcp",
      )
      .map((c) => `${c.source}>${c.destination}`);
    let n = 0;
    const timer = setInterval(
      () => {
        n += 1;
        const line = answers.tapLine(this.mesh, ids[n % ids.length] ?? "", n, now());
        if (query.get("failed") && line.response_flags === "-") return;
        if (query.get("path") && !line.path.startsWith(query.get("path"))) return;
        response.write(`event: request\ndata: ${JSON.stringify(line)}\n\n`);
      },
      ids.length ? 60 : 1e9,
    );
    request.on("close", () => clearInterval(timer));
  }

  async act(what, request, response) {
    if (!this.actions)
      return refuse(
        response,
        403,
        "read_only",
        "the console may only read",
        "start the controller with `--console-actions`",
      );
    if (request.headers["x-tulle-csrf"] !== "csrf-of-the-fixture")
      return refuse(response, 403, "bad_csrf", "the token is missing", "reload the page");
    const asked = JSON.parse(await body(request));
    if (what === "apply") {
      const name = /name: (\S+)/.exec(asked.yaml)?.[1];
      if (asked.yaml.includes("kind: TrafficTarget") && name === "ratings" && !asked.dryRun) this.allow();
      const results = asked.dryRun ? [] : [{ kind: /kind: (\S+)/.exec(asked.yaml)?.[1], name, outcome: "configured" }];
      return reply(response, 200, { results, findings: [] });
    }
    return reply(response, 200, {});
  }

  find(path, query) {
    const at = Number(query.get("at")) || now();
    const { mesh } = this;
    const id = query.get("id") ?? "";
    switch (path) {
      case "session":
        return {
          user: "root",
          actions: this.actions,
          csrf: "csrf-of-the-fixture",
          expiresAt: Math.round(now() + 43_200),
          mesh: mesh.facts,
        };
      case "graph":
        return mesh.graph(at, Number(query.get("window")) || 60);
      case "edge":
        return mesh.calls.has(id) && answers.edgePage(mesh, id, now(), Number(query.get("window")) || 900);
      case "why":
        return answers.whyOf(mesh, query.get("from"), query.get("to"), at);
      case "services":
        return { services: answers.servers(mesh).map((node) => answers.serviceRow(mesh, node, now())) };
      case "service":
        return answers.servicePage(mesh, query.get("name"), now());
      case "proxies":
        return { proxies: answers.proxyRows(mesh, now()) };
      case "proxy":
        return answers.proxyPage(mesh, id, now());
      case "proxy/config":
        return answers.proxyConfig(mesh, id, now());
      case "proxy/endpoints":
        return answers.proxyEndpoints(mesh, id, now());
      case "objects":
        return { objects: answers.objectRefs(mesh) };
      case "object":
        return answers.objectPage(mesh, query.get("kind"), query.get("name"));
      case "certificates":
        return answers.certificates(mesh, now());
      case "findings":
        return { findings: mesh.findings() };
      case "marks":
        return {
          marks: mesh.marks.filter((m) => m.at >= Number(query.get("from")) && m.at <= Number(query.get("to"))),
        };
      case "compare":
        return mesh.compare(Number(query.get("before")), Number(query.get("after")));
      default:
        return null;
    }
  }
}

function reply(response, status, value) {
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify(value));
}

function refuse(response, status, code, message, fix) {
  reply(response, status, { error: { code, message, fix } });
}

async function body(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts).toString();
}

async function main(words) {
  const after = (name) => (words.includes(name) ? words[words.indexOf(name) + 1] : undefined);
  const fixture = new Fixture({
    mesh: after("--mesh") ?? "bookinfo",
    actions: words.includes("--actions"),
    slow: words.includes("--slow") ? 1500 : 0,
    files: await pageFiles(),
  });
  await fixture.start(Number(after("--port")) || 8900);
  if (words.includes("--watch")) {
    watch(new URL("../src", import.meta.url), { recursive: true }, async () => {
      try {
        fixture.files = await pageFiles();
      } catch (error) {
        console.error(error.message);
      }
    });
  }
  console.log(fixture.address());
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main(process.argv.slice(2));
