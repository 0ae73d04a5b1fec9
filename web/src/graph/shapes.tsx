/** How nodes, edges and boxes look. */
import type { JSX } from "preact";
import { milliseconds, percent, rate, t, word } from "../i18n/index.ts";
import { type IconName, IconPath } from "../ui/icons.tsx";
import { plainWay, type Rect, smooth } from "./geometry.ts";
import { NODE_HEIGHT, NODE_WIDTH, type Point } from "./layout.ts";
import { type Box, type DrawnEdge, type DrawnNode, OWN_HOST, SEVERAL } from "./model.ts";

const ICONS: Record<DrawnNode["kind"], IconName> = {
  service: "services",
  gateway: "gateways",
  outside: "users",
  external: "globe",
  group: "group",
  more: "group",
};

/** Second line of a node: what is worth to know of it at a glance. */
function detail(node: DrawnNode): string {
  const { node: facts } = node;
  if (node.kind === "group" || node.kind === "more") {
    const counts = { n: node.troubled, all: node.count };
    return node.troubled ? t("graph.troubled", counts) : t("graph.members", { n: node.count });
  }
  if (node.kind === "outside") return t("graph.outside");
  if (node.kind === "external") return t("graph.external");
  if (!facts) return "";
  const state =
    facts.kind === "gateway"
      ? t("graph.gateway")
      : facts.endpoints === 0 || facts.ready === 0
        ? t("graph.noEndpoint")
        : t("graph.ready", { ready: facts.ready, all: facts.endpoints });
  return facts.namespace && !node.group ? `${facts.namespace} · ${state}` : state;
}

function shortened(text: string, length: number): string {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

export function nodeTitle(node: DrawnNode): string {
  return node.kind === "more" ? t("graph.more", { n: node.count }) : groupTitle(node.name);
}

function groupTitle(name: string): string {
  if (name === OWN_HOST) return t("graph.ownHost");
  return name === SEVERAL ? t("graph.severalHosts") : name;
}

export interface NodeProps {
  node: DrawnNode;
  at: Point;
  selected: boolean;
  dimmed: boolean;
  focusable: boolean;
  onPick: (id: string) => void;
  onFocus: (id: string) => void;
}

export function NodeShape({ node, at, selected, dimmed, focusable, onPick, onFocus }: NodeProps): JSX.Element {
  const title = nodeTitle(node);
  const states = { kind: word("kind", node.kind), name: title, health: word("health", node.health) };
  const stacked = node.kind === "group" || node.kind === "more";
  const classes = ["node", `node-${node.kind}`, `tone-${node.health}`, selected && "selected", dimmed && "dimmed"];
  return (
    // biome-ignore lint/a11y/useSemanticElements: SVG has no button element.
    <g
      class={classes.filter(Boolean).join(" ")}
      transform={`translate(${at.x - NODE_WIDTH / 2} ${at.y - NODE_HEIGHT / 2})`}
      role="button"
      tabIndex={focusable ? 0 : -1}
      aria-label={`${t("graph.nodeLabel", states)}, ${detail(node)}`}
      aria-pressed={selected}
      data-pick="node"
      data-id={node.id}
      onClick={() => onPick(node.id)}
      onFocus={() => onFocus(node.id)}
    >
      <title>{title}</title>
      {stacked && <rect class="node-stack" x="6" y="-5" width={NODE_WIDTH - 12} height={NODE_HEIGHT} rx="11" />}
      <rect class="node-card" width={NODE_WIDTH} height={NODE_HEIGHT} rx="11" />
      <rect class="node-tile" x="9" y="11" width="32" height="32" rx="8" />
      <g class="node-icon" transform="translate(17 19)">
        <IconPath name={ICONS[node.kind]} />
      </g>
      <text class="node-name" x="50" y="24">
        {shortened(title, 14)}
      </text>
      <text class="node-detail" x="50" y="40">
        {shortened(detail(node), 21)}
      </text>
      <circle class="node-health" cx={NODE_WIDTH - 14} cy="14" r="4" />
      {node.findings > 0 && (
        <g class="node-findings" transform={`translate(${NODE_WIDTH - 10} ${NODE_HEIGHT - 6})`}>
          <rect x="-13" y="-9" width="26" height="18" rx="9" />
          <text text-anchor="middle" y="4">
            {`! ${node.findings > 99 ? "99" : node.findings}`}
          </text>
        </g>
      )}
    </g>
  );
}

/** Edges with more traffic are wider; four steps of ten are told apart. */
export function strokeWidth(perSecond: number): number {
  return perSecond <= 0 ? 1.2 : Math.min(5, 1.5 + 0.9 * Math.log10(1 + perSecond));
}

export function edgeTone(edge: DrawnEdge): string {
  if (edge.denied > 0) return "denied";
  return edge.rate > 0 ? edge.health : "idle";
}

export function edgeLabel(edge: DrawnEdge): string {
  if (edge.denied > 0) return t("graph.deniedRate", { rate: rate(edge.denied) });
  if (edge.health === "error" && edge.success !== null) return `${rate(edge.rate)} · ${percent(edge.success)}`;
  return edge.protocol === "tcp" || edge.p99 === null
    ? rate(edge.rate)
    : `${rate(edge.rate)} · ${milliseconds(edge.p99)}`;
}

export function wayOf(edge: DrawnEdge, places: Record<string, Point>, ways: Record<string, Point[]>): Point[] | null {
  const from = places[edge.source];
  const to = places[edge.destination];
  if (!from || !to) return null;
  return ways[edge.id] ?? plainWay(from, to);
}

/** About so many pixels at the size of labels; Chinese characters are wide. */
function textWidth(text: string): number {
  return [...text].reduce((sum, char) => sum + (char > "\u2e80" ? 11 : 6.1), 0);
}

export interface EdgeProps {
  edge: DrawnEdge;
  way: Point[];
  names: { source: string; destination: string };
  /** `selected`, `dimmed`, `near`: it leads to or from what is picked. */
  state: string;
  onPick: (id: string) => void;
}

export function EdgeShape({ edge, way, names, state, onPick }: EdgeProps): JSX.Element {
  const tone = edgeTone(edge);
  const path = smooth(way);
  const said = t("graph.edgeLabel", {
    ...names,
    rate: rate(edge.rate),
    success: percent(edge.success),
    p99: milliseconds(edge.p99),
  });
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: by keyboard the calls are in the panel of each node, and in the list.
    <g class={`edge tone-${tone} ${state}`} data-pick="edge" data-edge={edge.id} onClick={() => onPick(edge.id)}>
      <title>{said}</title>
      <path class="edge-hit" d={path} />
      <path class="edge-line" d={path} stroke-width={strokeWidth(edge.rate)} marker-end={`url(#arrow-${tone})`} />
    </g>
  );
}

export interface LabelProps {
  edge: DrawnEdge;
  at: Point;
  state: string;
  onPick: (id: string) => void;
}

export const LABEL_HEIGHT = 22;

/** Its lock and its text, in about so many pixels. */
export function labelWidth(edge: DrawnEdge): number {
  return 30 + textWidth(edgeLabel(edge));
}

/** Labels are drawn last: no line runs through another edge's figures, and where there is no room but on a card they can still be picked. */
export function EdgeLabel({ edge, at, state, onPick }: LabelProps): JSX.Element {
  const width = labelWidth(edge);
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: as above.
    <g
      class={`edge-label tone-${edgeTone(edge)} ${state}`}
      transform={`translate(${at.x} ${at.y})`}
      data-pick="edge"
      data-label={edge.id}
      onClick={() => onPick(edge.id)}
    >
      <rect x={-width / 2} y={-LABEL_HEIGHT / 2} width={width} height={LABEL_HEIGHT} rx={LABEL_HEIGHT / 2} />
      <g class={`edge-lock mtls-${edge.mtls}`} transform={`translate(${7 - width / 2} -6) scale(.75)`}>
        <IconPath name={edge.mtls === "all" ? "lock" : "unlock"} />
      </g>
      <text x="8" y="4" text-anchor="middle">
        {edgeLabel(edge)}
      </text>
    </g>
  );
}

export function BoxShape({ box, at, onClose }: { box: Box; at: Rect; onClose: ((id: string) => void) | null }) {
  return (
    <g class="box" transform={`translate(${at.x} ${at.y})`}>
      <rect width={at.width} height={at.height} rx="16" />
      <text x="16" y="22">
        {groupTitle(box.name)}
      </text>
      {onClose && (
        // biome-ignore lint/a11y/useSemanticElements: SVG has no button element.
        <g
          class="box-close"
          role="button"
          tabIndex={0}
          data-pick="box"
          aria-label={`${t("graph.collapse")} ${box.name}`}
          transform={`translate(${at.width - 30} 8)`}
          onClick={() => onClose(box.id)}
          onKeyDown={(event) => {
            if (event.key === "Enter" || event.key === " ") onClose(box.id);
          }}
        >
          <rect width="20" height="20" rx="6" />
          <g transform="translate(3.2 3.2) scale(.85)">
            <IconPath name="minus" />
          </g>
        </g>
      )}
    </g>
  );
}

export function Arrows(): JSX.Element {
  return (
    <defs>
      {["ok", "warning", "error", "denied", "idle"].map((tone) => (
        <marker
          key={tone}
          id={`arrow-${tone}`}
          viewBox="0 0 10 10"
          refX="9"
          refY="5"
          markerWidth="9"
          markerHeight="9"
          markerUnits="userSpaceOnUse"
          orient="auto-start-reverse"
        >
          <path class={`arrow tone-${tone}`} d="M0 1L9.5 5 0 9z" />
        </marker>
      ))}
    </defs>
  );
}
