// Objects and functions of Tulle's plugins beside the language (docs/features/plugins.md). For editors and `tsc`: put it beside a plugin
// and begin it with `/// <reference path="plugins.d.ts" />`, or `// @ts-check`.

/** Fields of a head. Names are compared in any letter case; several values are joined by `, `. */
interface HeadFields extends Iterable<[string, string]> {
  get(name: string): string | null;
  has(name: string): boolean;
  set(name: string, value: string | number | boolean): void;
  append(name: string, value: string | number | boolean): void;
  delete(name: string): void;
  entries(): Iterable<[string, string]>;
  keys(): Iterable<string>;
  values(): Iterable<string>;
  forEach(then: (value: string, name: string, headers: HeadFields) => void): void;
}

/** The first argument of `onRequest`. */
interface PluginRequest {
  readonly method: string;
  /** With the query. */
  path: string;
  readonly host: string;
  readonly headers: HeadFields;
  readonly hasBody: boolean;
  /** `onRequestBody` is not called, and the body is not held. */
  skipBody(): void;
}

/** The first argument of `onResponse`. */
interface PluginResponse {
  /** Not to or from 204, 205 and 304. */
  status: number;
  readonly headers: HeadFields;
  /** `onResponseBody` is not called, and the body is not held. */
  skipBody(): void;
}

/** The first argument of `onRequestBody` and `onResponseBody`: a whole body, as it was sent. */
interface WholeBody {
  /** In bytes. */
  readonly length: number;
  bytes(): Uint8Array;
  text(): string;
  json(): any;
}

interface PluginParty {
  /** SPIFFE id; empty: none. */
  readonly identity: string;
  readonly namespace: string;
  readonly service: string;
  readonly address: string;
}

/** Type of `export const configSchema`: words of JSON Schema (2020-12) that are checked before the plugin starts. */
interface PluginConfigSchema {
  type?: string | string[];
  enum?: unknown[];
  const?: unknown;
  properties?: Record<string, PluginConfigSchema | boolean>;
  required?: string[];
  additionalProperties?: PluginConfigSchema | boolean;
  items?: PluginConfigSchema | boolean;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  minItems?: number;
  maxItems?: number;
  title?: string;
  description?: string;
  default?: unknown;
  examples?: unknown[];
}

interface PluginContext<Config = any> {
  /** `config` of the Plugin; null: it has none. */
  readonly config: Config;
  /** For the hooks of one request. */
  state: Record<string, any>;
  readonly source: PluginParty;
  readonly destination: PluginParty;
  /** In a route: the backends of its rule, `service:port`. */
  readonly backends: string[];
  /** In a route: the one that was chosen, and null before; may be set to one of `backends`, with or without its port. */
  backend: string | null;
  /** A name and value for the access log. */
  tag(name: string, value: string | number | boolean): void;
}

type PluginBody = string | Uint8Array | ArrayBuffer | ArrayBufferView | null | undefined;
type PluginFields = Iterable<[string, string | number]> | Record<string, string | number>;

/** An answer, returned by `onRequest` or `onRequestBody`. */
declare class Response {
  constructor(body?: PluginBody, init?: { status?: number; headers?: PluginFields });
  static json(value: unknown, init?: { status?: number; headers?: PluginFields }): Response;
}

interface Fetched {
  readonly status: number;
  /** Whether the status is from 200 to 299. */
  readonly ok: boolean;
  readonly headers: Map<string, string>;
  text(): Promise<string>;
  json(): Promise<any>;
  bytes(): Promise<Uint8Array>;
  arrayBuffer(): Promise<ArrayBuffer>;
}

declare const mesh: {
  /** `target` is `service:port/path`; the service is one of the Plugin's `services`. `timeout` is in milliseconds. */
  fetch(target: string, init?: { method?: string; headers?: PluginFields; body?: PluginBody; timeout?: number }): Promise<Fetched>;
  sleep(milliseconds: number): Promise<void>;
};

/** Counters that are among the sidecar's metrics: `tulle_plugin_count_total`. */
declare const metrics: {
  count(name: string, count?: number): void;
};

/** Values of this worker. `ttl` is in seconds. */
declare const store: {
  get(key: string): any;
  set(key: string, value: unknown, options?: { ttl?: number }): void;
  add(key: string, count?: number, options?: { ttl?: number }): number;
  delete(key: string): boolean;
};

declare const crypto: {
  subtle: {
    digest(algorithm: "SHA-256" | "SHA-384" | "SHA-512", data: PluginBody): Promise<ArrayBuffer>;
    importKey(format: "raw", key: PluginBody, algorithm: { name: "HMAC"; hash: string }, ...rest: unknown[]): Promise<object>;
    sign(algorithm: unknown, key: object, data: PluginBody): Promise<ArrayBuffer>;
    verify(algorithm: unknown, key: object, signature: PluginBody, data: PluginBody): Promise<boolean>;
  };
};

declare const console: Record<"debug" | "log" | "info" | "warn" | "error", (...values: unknown[]) => void>;
declare function atob(text: string): string;
declare function btoa(text: string): string;

declare class TextEncoder {
  encode(text?: string): Uint8Array;
}

declare class TextDecoder {
  constructor(label?: string, options?: { fatal?: boolean });
  decode(bytes?: PluginBody): string;
}
