/** The page's pictograms: one line width, 16 × 16, in the colour of the text. */
import type { JSX } from "preact";

const PATHS = {
  graph:
    "M5.6 8a2 2 0 1 1-4 0 2 2 0 0 1 4 0zM14.4 3.6a2 2 0 1 1-4 0 2 2 0 0 1 4 0zM14.4 12.4a2 2 0 1 1-4 0 2 2 0 0 1 4 0zM5.4 7.1l5.2-2.6M5.4 8.9l5.2 2.6",
  services: "M2.5 3.5h11v4h-11zM2.5 9.5h11v3h-11zM5 5.5h0M5 11h0",
  proxies: "M8 2l5 2v4c0 3-2 5-5 6-3-1-5-3-5-6V4z",
  gateways: "M2 13.5V8a6 6 0 0 1 12 0v5.5M5.5 13.5V8.5a2.5 2.5 0 0 1 5 0v5",
  policies: "M4 2.5h6l2.5 2.5v8.5H4zM6 8l1.5 1.5L10.5 6.5M6 12h4",
  routes: "M3 13V9a3 3 0 0 1 3-3h7M10.5 3.5L13 6l-2.5 2.5",
  objects: "M8 1.8l5.5 3v6.4L8 14.2l-5.5-3V4.8zM2.8 5L8 7.8 13.2 5M8 8v6",
  certificates: "M8 9.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM6 9l-1 5 3-1.6L11 14l-1-5",
  findings: "M8 2.5l6 10.5H2zM8 6.5v3M8 11.3v.1",
  why: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM6.3 6.3a1.8 1.8 0 1 1 2.4 1.8c-.5.2-.7.5-.7 1M8 11.2v.1",
  compare: "M5 3v10M11 3v10M3 5.5L5 3l2 2.5M9 10.5l2 2.5 2-2.5",
  tap: "M2 8h2.5L6.5 3l3 10 2-5H14",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.5 10.5L14 14",
  close: "M4 4l8 8M12 4l-8 8",
  lock: "M4 7.5h8v6H4zM5.5 7.5V5.2a2.5 2.5 0 0 1 5 0v2.3",
  unlock: "M4 7.5h8v6H4zM5.5 7.5V5a2.5 2.5 0 0 1 4.8-1",
  plus: "M8 3.5v9M3.5 8h9",
  minus: "M3.5 8h9",
  fit: "M2.5 6V2.5H6M10 2.5h3.5V6M13.5 10v3.5H10M6 13.5H2.5V10",
  tidy: "M2.5 4h4v3h-4zM9.5 2.5h4v3h-4zM9.5 10.5h4v3h-4zM6.5 5.5l3-1.5M6.5 6l3 5.5",
  sun: "M8 10.8a2.8 2.8 0 1 0 0-5.6 2.8 2.8 0 0 0 0 5.6zM8 1.5v1.5M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M3.4 12.6l1-1M11.6 4.4l1-1",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5z",
  system: "M2.5 3h11v7.5h-11zM6 13h4M8 10.5V13",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  right: "M6 3.5L10.5 8 6 12.5",
  down: "M3.5 6L8 10.5 12.5 6",
  check: "M3 8.5L6.5 12 13 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 4.8V8l2.2 1.6",
  globe: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM2.2 8h11.6M8 2c-4 4-4 8 0 12M8 2c4 4 4 8 0 12",
  external: "M6.5 3.5h-3v9h9v-3M9.5 2.5h4v4M13.5 2.5L7.5 8.5",
  users:
    "M6 7.5a2.2 2.2 0 1 0 0-4.4 2.2 2.2 0 0 0 0 4.4zM2 13c0-2.2 1.8-3.8 4-3.8s4 1.6 4 3.8M10.5 3.3a2.2 2.2 0 0 1 0 4M11.5 9.4c1.5.4 2.5 1.8 2.5 3.6",
  group: "M2.5 2.5h5v5h-5zM8.5 8.5h5v5h-5zM8.5 2.5h5v5h-5zM2.5 8.5h5v5h-5z",
  play: "M5 3l8 5-8 5z",
  stop: "M4 4h8v8H4z",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }): JSX.Element {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

/** The path alone, to be drawn within the graph. */
export function IconPath({ name }: { name: IconName }): JSX.Element {
  return <path class="icon-path" d={PATHS[name]} />;
}

export function Logo(): JSX.Element {
  return (
    <svg class="logo" width="24" height="24" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" class="logo-back" />
      <path d="M8 9h16M8 16h16M8 23h16M9 8v16M16 8v16M23 8v16" class="logo-mesh" />
      <path d="M9 9l7 7 7-7M16 16v8" class="logo-line" />
      <g class="logo-dots">
        <circle cx="9" cy="9" r="2.6" />
        <circle cx="23" cy="9" r="2.6" />
        <circle cx="16" cy="16" r="2.6" />
        <circle cx="16" cy="24" r="2.6" />
      </g>
    </svg>
  );
}
