/** Numbers that look like a live mesh and are the same for the same time: no test depends on chance. */

/** A number from 0 to 1 for a text and a whole number. */
export function chance(text, n = 0) {
  let hash = 2166136261 ^ n;
  for (let i = 0; i < text.length; i += 1) hash = Math.imul(hash ^ text.charCodeAt(i), 16777619);
  hash = Math.imul(hash ^ (hash >>> 15), 2246822507);
  hash = Math.imul(hash ^ (hash >>> 13), 3266489909);
  return ((hash ^ (hash >>> 16)) >>> 0) / 4294967296;
}

/** Swings slowly around 1, with some roughness. */
export function swing(text, t) {
  const slow = Math.sin(t / (70 + 60 * chance(text)) + 6 * chance(text, 1));
  return 1 + 0.14 * slow + 0.1 * (chance(text, Math.floor(t / 5)) - 0.5);
}
