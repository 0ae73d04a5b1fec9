// What a plugin finds beside the language: the objects of its hooks, and the functions of the mesh. `host` asks the
// proxy, and a plugin cannot reach it. This is evaluated first, so a plugin changes nothing of what is used here.

// One call of these may take any time: they go over as many elements as an object says it has, or search a text for another
// at every place, and look at no clock meanwhile.
const MOST = 65536;
const { apply, getPrototypeOf } = Reflect;
const { defineProperty, getOwnPropertyDescriptor, freeze } = Object;
const { isArray } = Array;
const [TooMany, Wrong, Expression, text, number] = [RangeError, TypeError, RegExp, String, Number];
// A plugin may put functions of its own into the prototype of maps.
const { get, set, delete: erase } = Map.prototype;
const mapGet = (map, key) => apply(get, map, [key]);
const mapSet = (map, key, value) => apply(set, map, [key, value]);
const mapDelete = (map, key) => apply(erase, map, [key]);

// The engine looks at the clock after ten thousand steps, and one of them may be a function over a megabyte: what is longer than this
// is looked at before.
const LONG = 4096;
let look = () => {};
const small = (value) => (typeof value === "string" || isArray(value)) && value.length <= LONG;

// Puts another function in the place of one that a version of the engine may lack.
function replace(owner, name, make) {
  const before = getOwnPropertyDescriptor(owner, name);
  if (typeof before?.value === "function") defineProperty(owner, name, { ...before, value: make(before.value)[name] });
}

const receiver = (self) => self;
const argument = (_, [first]) => first;
function bounded(owner, names, subject, fits = () => true) {
  for (const name of names) {
    replace(owner, name, (original) => ({
      [name](...given) {
        if (!fits(this, given)) throw new TooMany(`${name}: more than ${MOST} elements`);
        if (!small(subject(this, given))) look();
        return apply(original, this, given);
      },
    }));
  }
}

// The engine asks for a length, or for a text, again. What may answer otherwise then, a getter or an object with a value, is not asked.
const isObject = (value) => (typeof value === "object" && value !== null) || typeof value === "function";
const propertyOf = (value, name) => {
  for (let at = Object(value); at !== null; at = getPrototypeOf(at)) {
    const found = getOwnPropertyDescriptor(at, name);
    if (found !== undefined) return found;
  }
  return {};
};
const typedLength = getOwnPropertyDescriptor(getPrototypeOf(Uint8Array.prototype), "length").get;
const lengthOf = (self) => {
  if (self === undefined || self === null) return 0;
  if (isArray(self)) return self.length;
  const { get, value = 0 } = propertyOf(self, "length");
  if (get === typedLength) return apply(get, self, []);
  return get !== undefined || isObject(value) ? Infinity : number(value);
};
const few = (self) => !(lengthOf(self) > MOST);
bounded(
  Array.prototype,
  [
    "copyWithin", "every", "fill", "filter", "forEach", "includes", "indexOf", "join", "lastIndexOf", "map", "pop", "push", "reduce", "reduceRight", "reverse", "shift",
    "slice", "some", "sort", "splice", "toLocaleString", "toReversed", "toSorted", "toSpliced", "unshift", "with",
  ],
  receiver,
  few,
);
bounded(Iterator.prototype, ["drop"], receiver, (_, [count]) => !isObject(count) && !(number(count) > MOST));
// They go over what another set says that it has.
for (const name of ["union", "intersection", "difference", "symmetricDifference", "isSubsetOf", "isSupersetOf", "isDisjointFrom"]) {
  delete Set.prototype[name];
}
// What is in a list may be long, too: these are written anew, in steps that are counted.
const flatten = (list, depth, into) => {
  for (let at = 0; at < number(list.length); at++) {
    if (!(at in list)) continue;
    if (depth > 0 && isArray(list[at])) flatten(list[at], depth - 1, into);
    else into[into.length] = list[at];
  }
  return into;
};
// The engine frees an element twice where its own functions that search are interrupted (quickjs-ng 0.14, js_array_find).
const search = (list, test, self, step) => {
  if (typeof test !== "function") throw new Wrong("not a function");
  const length = number(list.length);
  for (let at = step > 0 ? 0 : length - 1; at >= 0 && at < length; at += step) {
    const one = list[at];
    if (apply(test, self, [one, at, list])) return [at, one];
  }
  return [-1];
};
const { map } = Array.prototype;
const spreadable = Symbol.isConcatSpreadable;
const written = {
  concat(...given) {
    if (this === undefined || this === null) throw new Wrong("concat: there is no list");
    const into = [];
    for (let at = -1; at < given.length; at++) {
      const one = at < 0 ? Object(this) : given[at];
      const start = into.length;
      if (!(one?.[spreadable] ?? isArray(one))) {
        into[start] = one;
        continue;
      }
      const length = number(one.length);
      for (let place = 0; place < length; place++) if (place in one) into[start + place] = one[place];
      if (length > 0) into.length = start + length;
    }
    return into;
  },
  flat(depth = 1) {
    return flatten(this, number(depth), []);
  },
  flatMap(then, self) {
    return flatten(apply(map, this, [then, self]), 1, []);
  },
  find(test, self) {
    return search(this, test, self, 1)[1];
  },
  findIndex(test, self) {
    return search(this, test, self, 1)[0];
  },
  findLast(test, self) {
    return search(this, test, self, -1)[1];
  },
  findLastIndex(test, self) {
    return search(this, test, self, -1)[0];
  },
};
for (const [name, value] of Object.entries(written)) {
  defineProperty(Array.prototype, name, { ...getOwnPropertyDescriptor(Array.prototype, name), value });
}
// The same of what is written as JSON: with a function for each value the engine looks at the clock.
const { stringify } = JSON;
JSON.stringify = (value, replacer, space) => {
  if (isArray(replacer)) throw new Wrong("JSON.stringify: a list of names is not supported, write a function");
  return stringify(value, typeof replacer === "function" ? replacer : (_, one) => one, space);
};
// Texts are searched place by place. What is sought may say itself how, as regular expressions do.
for (const [name, symbol] of Object.entries({
  includes: undefined,
  indexOf: undefined,
  lastIndexOf: undefined,
  replace: Symbol.replace,
  replaceAll: Symbol.replace,
  split: Symbol.split,
})) {
  replace(String.prototype, name, (original) => ({
    [name](sought, ...given) {
      if (this === undefined || this === null) throw new Wrong(`${name}: there is no text`);
      const whole = text(this);
      if (isObject(sought)) {
        if (symbol !== undefined && typeof propertyOf(sought, symbol).value === "function") return apply(original, whole, [sought, ...given]);
        if (name === "includes" && sought instanceof Expression) throw new Wrong("includes: a regular expression is no text");
        sought = text(sought);
      }
      if (whole.length * (typeof sought === "string" ? sought.length : 1) > MOST * 64) throw new TooMany(`${name}: the texts are too long`);
      return apply(original, whole, [sought, ...given]);
    },
  }));
}
bounded(
  String.prototype,
  [
    "concat", "endsWith", "isWellFormed", "localeCompare", "normalize", "padEnd", "padStart", "repeat", "slice", "startsWith", "substr",
    "substring", "toLocaleLowerCase", "toLocaleUpperCase", "toLowerCase", "toUpperCase", "toWellFormed", "trim", "trimEnd", "trimStart",
  ],
  receiver,
);
bounded(
  getPrototypeOf(Uint8Array.prototype),
  ["copyWithin", "fill", "includes", "indexOf", "join", "lastIndexOf", "reverse", "set", "slice", "sort", "toReversed", "toSorted", "with"],
  receiver,
);
bounded(Object, ["defineProperties", "entries", "freeze", "fromEntries", "getOwnPropertyDescriptors", "getOwnPropertyNames"], argument);
bounded(Object, ["isFrozen", "isSealed", "keys", "seal", "values"], argument);
bounded(Object, ["assign"], () => undefined);
bounded(Array, ["from"], argument);
bounded(Reflect, ["ownKeys"], argument);
bounded(JSON, ["parse"], argument);
bounded(
  globalThis,
  ["decodeURI", "decodeURIComponent", "encodeURI", "encodeURIComponent", "escape", "parseFloat", "parseInt", "unescape"],
  argument,
);

// A text is no program, and nobody waits for another thread.
const noProgram = () => {
  throw new Wrong("a plugin cannot make programs of texts");
};
for (const made of [() => {}, async () => {}, function* () {}, async function* () {}]) {
  defineProperty(getPrototypeOf(made), "constructor", { value: noProgram, writable: false, configurable: false });
}
// The engine runs them while it makes an error of its own, and the first one leaks.
for (const name of ["stackTraceLimit", "prepareStackTrace", "captureStackTrace"]) delete Error[name];
for (const name of ["eval", "Function", "Atomics", "SharedArrayBuffer", "BigInt", "BigInt64Array", "BigUint64Array"]) {
  delete globalThis[name];
}
// It adds up what any iterator gives.
delete Math.sumPrecise;
for (const name of ["getBigInt64", "getBigUint64", "setBigInt64", "setBigUint64"]) delete DataView.prototype[name];

// What a plugin exports as `configSchema` says what its configuration may be, in these words of JSON Schema (2020-12). Another word
// is refused: a demand that nobody checks would be none.
const kindOf = (value) => (value === null ? "null" : isArray(value) ? "array" : typeof value);
const kinds = (value) => (kindOf(value) === "number" && Number.isInteger(value) ? ["integer", "number"] : [kindOf(value)]);
const fits = {
  type: (value, wanted) => [wanted].flat().some((kind) => kinds(value).includes(kind)),
  enum: (value, wanted) => wanted.some((one) => stringify(one) === stringify(value)),
  const: (value, wanted) => stringify(wanted) === stringify(value),
  minimum: (value, least) => typeof value !== "number" || value >= least,
  maximum: (value, most) => typeof value !== "number" || value <= most,
  exclusiveMinimum: (value, least) => typeof value !== "number" || value > least,
  exclusiveMaximum: (value, most) => typeof value !== "number" || value < most,
  minLength: (value, least) => typeof value !== "string" || [...value].length >= least,
  maxLength: (value, most) => typeof value !== "string" || [...value].length <= most,
  pattern: (value, pattern) => typeof value !== "string" || new RegExp(pattern, "u").test(value),
  minItems: (value, least) => !isArray(value) || value.length >= least,
  maxItems: (value, most) => !isArray(value) || value.length <= most,
  required: (value, names) => kindOf(value) !== "object" || names.every((name) => Object.hasOwn(value, name)),
};
const NOTES = ["$schema", "$comment", "title", "description", "default", "examples"];
const INNER = ["properties", "additionalProperties", "items"];
const demand = (value, schema, at) => {
  if (schema === true) return;
  if (schema === false) throw new Wrong(`${at} is not known`);
  if (kindOf(schema) !== "object") throw new Wrong(`configSchema of ${at}: expected an object, true or false`);
  for (const [word, wanted] of Object.entries(schema)) {
    const test = Object.hasOwn(fits, word) ? fits[word] : undefined;
    if (test === undefined && ![...NOTES, ...INNER].includes(word)) {
      const known = [...Object.keys(fits), ...INNER, ...NOTES].join(", ");
      throw new Wrong(`configSchema of ${at}: ${word} is not known here; there are ${known}`);
    }
    if (test && !test(value, wanted)) throw new Wrong(`${at} is ${stringify(value)}, but its ${word} is ${stringify(wanted)}`);
  }
  const { properties = {}, additionalProperties = true, items = true } = schema;
  if (kindOf(value) === "object") {
    for (const [name, one] of Object.entries(value)) {
      demand(one, Object.hasOwn(properties, name) ? properties[name] : additionalProperties, `${at}.${name}`);
    }
  }
  if (isArray(value)) value.forEach((one, place) => demand(one, items, `${at}[${place}]`));
};

export default function install(host, config) {
  look = host.look;
  const bytesOf = (body) => {
    look();
    if (body === undefined || body === null) return new Uint8Array(0);
    if (body instanceof Uint8Array) return body;
    if (body instanceof ArrayBuffer) return new Uint8Array(body);
    if (ArrayBuffer.isView(body)) return new Uint8Array(body.buffer, body.byteOffset, body.byteLength);
    return host.encode(text(body));
  };
  const pairsOf = (fields) => {
    if (fields === undefined || fields === null) return [];
    const pairs = typeof fields[Symbol.iterator] === "function" ? [...fields] : Object.entries(fields);
    return pairs.map(([name, value]) => [text(name), text(value)]);
  };

  const { field, fields, edit, remove, setPath, setStatus, skipBody } = host;

  // Private fields would take a third more time to make. A plugin can find these, and reach by them what it could have kept: its
  // own calls that are not done.
  const [CALL, HEAD, HEADERS, STATE] = [Symbol("call"), Symbol("head"), Symbol("headers"), Symbol("state")];

  // Fields of a head that the proxy has. A head's number is twice its call's, and one more for the response's.
  class Headers {
    constructor(head) {
      this[HEAD] = head;
    }
    get(name) {
      return field(this[HEAD], name) ?? null;
    }
    has(name) {
      return field(this[HEAD], name) !== undefined;
    }
    set(name, value) {
      edit(this[HEAD], false, name, value);
    }
    append(name, value) {
      edit(this[HEAD], true, name, value);
    }
    delete(name) {
      remove(this[HEAD], name);
    }
    *entries() {
      yield* fields(this[HEAD]);
    }
    *keys() {
      for (const [name] of this.entries()) yield name;
    }
    *values() {
      for (const [, value] of this.entries()) yield value;
    }
    forEach(then) {
      for (const [name, value] of this.entries()) then(value, name, this);
    }
    [Symbol.iterator]() {
      return this.entries();
    }
  }

  class Request {
    constructor(call) {
      this[CALL] = call;
    }
    get method() {
      return host.method(this[CALL]);
    }
    get path() {
      return host.path(this[CALL]);
    }
    set path(path) {
      setPath(this[CALL], path);
    }
    get host() {
      return host.host(this[CALL]);
    }
    get headers() {
      return (this[HEADERS] ??= new Headers(this[CALL] * 2));
    }
    get hasBody() {
      return host.hasBody(this[CALL]);
    }
    skipBody() {
      skipBody(this[CALL] * 2);
    }
  }

  class UpstreamResponse {
    constructor(call) {
      this[CALL] = call;
    }
    get status() {
      return host.status(this[CALL]);
    }
    set status(status) {
      setStatus(this[CALL], number(status));
    }
    get headers() {
      return (this[HEADERS] ??= new Headers(this[CALL] * 2 + 1));
    }
    skipBody() {
      skipBody(this[CALL] * 2 + 1);
    }
  }

  // A whole body.
  class Body {
    #bytes;
    constructor(bytes) {
      this.#bytes = bytes;
    }
    get length() {
      return this.#bytes.length;
    }
    bytes() {
      return this.#bytes;
    }
    text() {
      look();
      return host.decode(this.#bytes, false);
    }
    json() {
      look();
      return JSON.parse(host.decode(this.#bytes, true));
    }
  }

  const party = ([identity, namespace, service, address]) => freeze({ identity, namespace, service, address });

  class Context {
    constructor(call) {
      this[CALL] = call;
    }
    get state() {
      return (this[STATE] ??= {});
    }
    set state(state) {
      this[STATE] = state;
    }
    get config() {
      return config;
    }
    get source() {
      return party(host.party(this[CALL], true));
    }
    get destination() {
      return party(host.party(this[CALL], false));
    }
    tag(name, value) {
      host.tag(this[CALL], text(name), text(value));
    }
    get backends() {
      return host.backends(this[CALL]);
    }
    get backend() {
      return host.backend(this[CALL]) ?? null;
    }
    set backend(name) {
      host.choose(this[CALL], text(name));
    }
  }

  // An answer that a plugin gives itself.
  class Response {
    constructor(body, init = {}) {
      this.status = number(init.status ?? 200);
      this.headers = pairsOf(init.headers);
      this.body = bytesOf(body);
      if (typeof body === "string" && !this.headers.some(([name]) => name.toLowerCase() === "content-type")) {
        this.headers.push(["content-type", "text/plain; charset=utf-8"]);
      }
    }
    static json(value, init = {}) {
      const headers = [["content-type", "application/json"], ...pairsOf(init.headers)];
      return new Response(JSON.stringify(value), { ...init, headers });
    }
  }

  // What a service of the mesh answered.
  class Fetched {
    #body;
    constructor(status, fields, bytes) {
      this.status = status;
      this.ok = status >= 200 && status < 300;
      this.headers = new Map(fields); // names are in lower case, each once
      this.#body = new Body(bytes);
    }
    async arrayBuffer() {
      return this.#body.bytes().buffer;
    }
    async bytes() {
      return this.#body.bytes();
    }
    async text() {
      return this.#body.text();
    }
    async json() {
      return this.#body.json();
    }
  }

  // Wishes that are open, by their number.
  const open = new Map();
  const promised = (wish) => new Promise((resolve, reject) => mapSet(open, wish, { resolve, reject }));
  const settle = (wish, failed, status, fields, body) => {
    const waits = mapGet(open, wish);
    mapDelete(open, wish);
    if (failed !== undefined && failed !== null) waits?.reject(new Error(failed));
    else waits?.resolve(status ? new Fetched(status, fields, body) : undefined);
  };
  const mesh = freeze({
    fetch(target, { method = "GET", headers, body, timeout = 1000 } = {}) {
      return promised(host.fetch(text(target), text(method), pairsOf(headers), bytesOf(body), number(timeout)));
    },
    sleep(ms) {
      return promised(host.timer(number(ms)));
    },
  });

  // What is kept between requests, the oldest given up first.
  const kept = new Map();
  const fresh = (key) => {
    const entry = mapGet(kept, key);
    if (entry && entry.until <= host.now()) {
      mapDelete(kept, key);
      return undefined;
    }
    return entry;
  };
  const keep = (key, value, ttl, until) => {
    mapDelete(kept, key);
    mapSet(kept, key, { value, until: until ?? (ttl === undefined ? Infinity : host.now() + number(ttl) * 1000) });
    if (kept.size > 1024) mapDelete(kept, kept.keys().next().value);
    return value;
  };
  const store = freeze({
    get: (key) => fresh(text(key))?.value,
    set: (key, value, { ttl } = {}) => void keep(text(key), value, ttl),
    add(key, count = 1, { ttl } = {}) {
      const entry = fresh(text(key));
      return keep(text(key), number(entry?.value ?? 0) + number(count), ttl, entry?.until);
    },
    delete: (key) => mapDelete(kept, text(key)),
  });

  const hashOf = (algorithm) => text(typeof algorithm === "string" ? algorithm : (algorithm?.hash?.name ?? algorithm?.hash ?? algorithm?.name));
  class Key {
    #bytes;
    constructor(hash, bytes) {
      this.hash = hash;
      this.#bytes = bytes;
    }
    static sign(key, data) {
      return host.sign(key.hash, key.#bytes, bytesOf(data));
    }
  }
  const sign = Key.sign;
  const subtle = freeze({
    async digest(algorithm, data) {
      return host.digest(hashOf(algorithm), bytesOf(data)).buffer;
    },
    async importKey(format, data, algorithm) {
      if (format !== "raw" || algorithm?.name !== "HMAC") throw new Wrong("there are raw keys for HMAC");
      return new Key(hashOf(algorithm), bytesOf(data));
    },
    async sign(_, key, data) {
      return sign(key, data).buffer;
    },
    async verify(_, key, signature, data) {
      return host.equal(sign(key, data), bytesOf(signature));
    },
  });

  const shown = (value) => (typeof value === "object" && value !== null && !(value instanceof Error) ? JSON.stringify(value) : text(value));
  const line = (level) => (...values) => host.log(level, values.map(shown).join(" "));
  const latin = (string) => {
    const bytes = new Uint8Array(string.length);
    for (let at = 0; at < string.length; at++) {
      const code = string.charCodeAt(at);
      if (code > 255) throw new Wrong("a character has more than 8 bits");
      bytes[at] = code;
    }
    return bytes;
  };

  const metrics = freeze({
    count(name, count = 1) {
      host.count(text(name), number(count));
    },
  });

  const globals = {
    mesh,
    metrics,
    store,
    Response,
    crypto: freeze({ subtle }),
    console: freeze({ debug: line("debug"), log: line("info"), info: line("info"), warn: line("warn"), error: line("error") }),
    atob(string) {
      look();
      let out = "";
      for (const byte of host.fromBase64(text(string))) out += String.fromCharCode(byte);
      return out;
    },
    btoa: (string) => host.toBase64(latin(text(string))),
    TextEncoder: class TextEncoder {
      encode(string = "") {
        return host.encode(text(string));
      }
    },
    TextDecoder: class TextDecoder {
      #fatal;
      constructor(_ = "utf-8", { fatal = false } = {}) {
        this.#fatal = Boolean(fatal);
      }
      decode(bytes) {
        return host.decode(bytesOf(bytes), this.#fatal);
      }
    },
  };
  for (const [name, value] of Object.entries(globals)) {
    defineProperty(globalThis, name, { value, writable: false, enumerable: false, configurable: false });
  }

  // Contexts of calls whose hooks are not all done.
  const contexts = new Map();
  const end = (call, name, value) => {
    if (name === "onConnection") {
      if (typeof value === "boolean") return host.judge(call, value);
      throw new Wrong("onConnection returns true, false, or nothing to see more");
    }
    if (value instanceof Response) return host.answer(call, value.status, pairsOf(value.headers), bytesOf(value.body));
    const bodies = name === "onRequestBody" || name === "onResponseBody";
    if (bodies && (typeof value === "string" || value instanceof ArrayBuffer || ArrayBuffer.isView(value))) {
      return host.replace(call, bytesOf(value));
    }
    throw new Wrong(`${name} returns nothing${bodies ? ", another body as text or bytes," : ""} or a Response`);
  };
  const fail = (call, error) => {
    const frame = text(error?.stack ?? "").split("\n").find((one) => one.trim() && !one.includes("(tulle:"));
    host.failed(call, `${error instanceof Error ? `${error.name}: ${error.message}` : text(error)}${frame ? ` ${frame.trim()}` : ""}`);
  };
  const newContext = (call) => new Context(call);
  const sameContext = (call) => {
    let context = mapGet(contexts, call);
    if (context === undefined) mapSet(contexts, call, (context = new Context(call)));
    return context;
  };
  // Functions of hooks by what they are shown.
  const made = {
    onRequest: (hook, context) => (call) => hook(new Request(call), context(call)),
    onRequestBody: (hook, context) => (call) => hook(new Body(host.body(call)), new Request(call), context(call)),
    onResponse: (hook, context) => (call) => hook(new UpstreamResponse(call), context(call)),
    onResponseBody: (hook, context) => (call) => hook(new Body(host.body(call)), new UpstreamResponse(call), context(call)),
    onLog: (hook, context) => (call) => hook(new Request(call), new UpstreamResponse(call), context(call)),
    onConnection: (hook, context) => (call) => hook(host.body(call), context(call)),
  };
  return {
    // The function that runs a hook, which the plugin exports. With one hook nothing is left of a call that another may want.
    runs: (name, hook, alone) => made[name](hook, alone ? newContext : sameContext),
    // Whether the configuration is what the plugin says that it takes.
    configured: (schema) => demand(config, schema, "config"),
    // What a hook has returned, if that is something.
    returned(call, name, result) {
      if (typeof result?.then !== "function") return end(call, name, result);
      const then = (value) => (value === undefined || value === null ? host.done(call) : end(call, name, value));
      result.then(then).catch((error) => fail(call, error));
    },
    settle,
    drop(call) {
      mapDelete(contexts, call);
    },
  };
}
