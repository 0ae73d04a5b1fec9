/** A manifest with its names, texts and comments told apart. It colours what it knows and changes no character. */
import type { ComponentChildren, JSX } from "preact";

const LINE = /^(\s*(?:- )*)("[^"]*"|[^\s#:'"][^:#]*?)?(:)?(\s+|$)(.*)$/;

function valueClass(text: string): string {
  if (/^(true|false|null|~)$/.test(text)) return "yaml-word";
  if (/^-?\d+(\.\d+)?$/.test(text)) return "yaml-number";
  return "yaml-text";
}

/** One line in parts; joined they are the line. */
export function lineParts(line: string): { kind: string; text: string }[] {
  if (/^\s*#/.test(line)) return [{ kind: "yaml-comment", text: line }];
  if (/^---/.test(line)) return [{ kind: "yaml-word", text: line }];
  const match = LINE.exec(line);
  if (!match) return [{ kind: "yaml-text", text: line }];
  const [, indent = "", key = "", colon = "", space = "", value = ""] = match;
  if (!colon) {
    const rest = line.slice(indent.length);
    return [
      { kind: "", text: indent },
      { kind: valueClass(rest), text: rest },
    ];
  }
  return [
    { kind: "", text: indent },
    { kind: "yaml-key", text: key },
    { kind: "", text: colon + space },
    { kind: valueClass(value), text: value },
  ];
}

export function Yaml({ text }: { text: string }): JSX.Element {
  const lines: ComponentChildren[] = text
    .trimEnd()
    .split("\n")
    .map((line, i) => (
      <span key={`${i}${line}`}>
        {lineParts(line).map((part, j) => (
          <span key={`${j}${part.kind}`} class={part.kind}>
            {part.text}
          </span>
        ))}
        {"\n"}
      </span>
    ));
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reached by keyboard.
    <pre class="yaml" tabIndex={0}>
      <code>{lines}</code>
    </pre>
  );
}
