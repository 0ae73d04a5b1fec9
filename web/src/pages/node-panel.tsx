/** A node of the graph: its state, and the calls to and from it. A call leads on to why. */
import type { JSX } from "preact";
import type { Edge, MeshNode } from "../api/types.ts";
import { endName, Lock, Reasons } from "../graph/edge-list.tsx";
import { milliseconds, percent, rate, t, word } from "../i18n/index.ts";
import type { GraphData } from "../state/mesh.ts";
import { href, nodeHref, setQuery } from "../state/route.ts";
import { Badge, Facts, HealthMark, Identity, Section } from "../ui/basics.tsx";
import { Icon } from "../ui/icons.tsx";
import { Panel } from "../ui/panel.tsx";
import { Tile } from "./edge-panel.tsx";

const RANK = { error: 0, warning: 1, ok: 2, idle: 3 };
const worstFirst = (a: Edge, b: Edge) =>
  b.denied - a.denied || RANK[a.health] - RANK[b.health] || b.rate - a.rate || a.id.localeCompare(b.id);

export function NodePanel({ id, graph }: { id: string; graph: GraphData }): JSX.Element {
  const node = graph.nodes.get(id);
  const edges = [...graph.edges.values()];
  const inbound = edges.filter((edge) => edge.destination === id).sort(worstFirst);
  const outbound = edges.filter((edge) => edge.source === id).sort(worstFirst);
  const link = nodeHref(id);
  const name = endName(id, graph);
  return (
    <Panel
      title={link ? <a href={link}>{name}</a> : name}
      label={name}
      onClose={() => setQuery({ node: null, tab: null })}
    >
      {node && <State node={node} inbound={inbound} />}
      <CallList title={t("edge.inbound")} edges={inbound} other="source" graph={graph} />
      <CallList title={t("edge.outbound")} edges={outbound} other="destination" graph={graph} />
      {link && (
        <p class="panel-links">
          <a href={link}>
            <Icon name="services" size={14} /> {t("app.open")}
          </a>
          <a href={href(["tap"], { destination: id })}>
            <Icon name="tap" size={14} /> {t("edge.tap")}
          </a>
        </p>
      )}
    </Panel>
  );
}

function State({ node, inbound }: { node: MeshNode; inbound: Edge[] }): JSX.Element {
  const total = inbound.reduce((sum, edge) => sum + edge.rate, 0);
  const inside = node.kind === "service" || node.kind === "gateway";
  return (
    <div class="numbers">
      <p class="numbers-state">
        <HealthMark health={node.health} label />
        <Badge>{word("kind", node.kind)}</Badge>
        {node.namespace && <Badge>{node.namespace}</Badge>}
        {node.findings > 0 && (
          <a href={href(["findings"])}>
            <Badge tone="warning">{t("app.findings", { n: node.findings })}</Badge>
          </a>
        )}
      </p>
      {inside && (
        <div class="tiles">
          <Tile name={t("edge.rate")} value={rate(total)} />
          {node.endpoints > 0 && (
            <Tile
              name={t("services.endpoints")}
              value={`${node.ready}/${node.endpoints}`}
              tone={node.ready === 0 ? "error" : ""}
            />
          )}
          <Tile name={t("services.proxies")} value={String(node.proxies)} />
        </div>
      )}
      <Facts
        rows={[
          [t("endpoint.host"), node.hosts.join(", ")],
          [
            t("services.identities"),
            node.identities.length > 0 && (
              <ul class="plain-list">
                {node.identities.map((identity) => (
                  <li key={identity}>
                    <Identity id={identity} />
                  </li>
                ))}
              </ul>
            ),
          ],
        ]}
      />
    </div>
  );
}

interface CallListProps {
  title: string;
  edges: Edge[];
  other: "source" | "destination";
  graph?: GraphData;
  onPick?: (edge: Edge) => void;
}

const SHOWN = 60;

export function CallList({ title, edges, other, graph, onPick }: CallListProps): JSX.Element {
  const pick = onPick ?? ((edge: Edge) => setQuery({ edge: edge.id, node: null, tab: null }));
  return (
    <Section title={title} count={edges.length}>
      {edges.length === 0 && <p class="muted">{t("edge.none")}</p>}
      <ul class="calls">
        {edges.slice(0, SHOWN).map((edge) => (
          <li key={edge.id}>
            <button
              type="button"
              class={`call tone-${edge.denied > 0 ? "denied" : edge.health}`}
              onClick={() => pick(edge)}
            >
              <span class="call-name">
                <HealthMark health={edge.health} />
                {endName(edge[other], graph)}
                <Lock mtls={edge.mtls} />
              </span>
              <span class="call-numbers">
                {rate(edge.rate)} · {percent(edge.success)} · P99 {milliseconds(edge.p99)}
              </span>
              {edge.reasons.length > 0 && <Reasons edge={edge} />}
            </button>
          </li>
        ))}
      </ul>
    </Section>
  );
}
