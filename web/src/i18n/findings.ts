/** What a code of `docs/findings.md` means, in the chosen language. The controller's own text is English, and names the objects. */
import { language } from "../state/prefs.ts";
import { chinese, type FindingText } from "./findings-zh.ts";

export function translated(code: string): FindingText | undefined {
  return language.value === "zh" ? chinese[code] : undefined;
}
