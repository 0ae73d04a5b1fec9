// Lets an MQTT client in if its client identifier is one that its identity in the mesh may use (MQTT 3.1.1 and 5, CONNECT).
// For a port with appProtocol tcp.
//
// config: { clients: { "sensor": "^kitchen-[0-9]+$" } }: service account or service, and the identifiers that it may use
export function onConnection(bytes, context) {
  const id = clientId(bytes);
  if (id === undefined) return; // more bytes have to come
  const allowed = context.config.clients[context.source.service];
  const passes = id !== null && allowed !== undefined && new RegExp(allowed).test(id);
  if (!passes) console.warn(`${context.source.service || "somebody"} may not be ${id}`);
  return passes;
}

// undefined: it has not come yet; null: this is no CONNECT.
function clientId(bytes) {
  if (bytes.length > 0 && bytes[0] !== 0x10) return null;
  let at = 1;
  let length = 0;
  for (let shift = 0; ; shift += 7, at++) {
    if (shift > 21) return null;
    if (at >= bytes.length) return undefined;
    length += (bytes[at] & 127) << shift;
    if (bytes[at] < 128) break;
  }
  at++;
  if (bytes.length < at + length) return length > 16384 ? null : undefined;
  const packet = bytes.subarray(at, at + length);
  const name = text(packet, 0);
  if (name !== "MQTT") return null;
  const version = packet[6];
  let next = 10; // behind protocol name, version, flags, keep alive
  if (version === 5) {
    const properties = packet[next];
    if (properties > 127) return null;
    next += 1 + properties;
  }
  return text(packet, next);
}

function text(packet, at) {
  const length = packet[at] * 256 + packet[at + 1];
  const end = at + 2 + length;
  return end <= packet.length ? new TextDecoder().decode(packet.subarray(at + 2, end)) : null;
}
