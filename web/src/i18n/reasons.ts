/** Cause and cure of a reason code, in the chosen language. English is what `docs/reasons.md` says. */
import english from "virtual:reasons";
import { language } from "../state/prefs.ts";
import { chinese } from "./reasons-zh.ts";

export interface Explained {
  cause: string;
  fix: string;
}

/** What a proxy added in brackets to the cause of the documentation: the rule, the TLS failure, the limit. */
export function detailOf(told: string, documented: string): string {
  const plain = (text: string) => text.replaceAll("`", "");
  return plain(told).startsWith(plain(documented)) ? plain(told).slice(plain(documented).length).trim() : "";
}

export function explained(code: string, told?: Explained): Explained {
  const known = english[code];
  if (language.value === "zh" && chinese[code]) {
    const detail = detailOf(told?.cause ?? "", known?.cause ?? "");
    return { ...chinese[code], cause: [chinese[code].cause, detail].filter(Boolean).join(" ") };
  }
  return { cause: told?.cause || known?.cause || "", fix: told?.fix || known?.fix || "" };
}
