/** Texts in the chosen language, and numbers and times as people read them. */
import { language } from "../state/prefs.ts";
import { en, type TextKey } from "./en.ts";
import { inChinese } from "./sentences-zh.ts";
import { zh } from "./zh.ts";

export type { TextKey };

type Values = Record<string, string | number>;

export function fill(text: string, values: Values = {}): string {
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => (name in values ? String(values[name]) : whole));
}

export function t(key: TextKey, values?: Values): string {
  return fill((language.value === "zh" ? zh : en)[key], values);
}

/** The text of a key made at run time, such as `kind.…`; the word itself where there is none. */
export function word(prefix: string, name: string): string {
  const key = `${prefix}.${name}`;
  return key in en ? t(key as TextKey) : name;
}

const locale = () => (language.value === "zh" ? "zh-CN" : "en-GB");

/** What the controller says of a call. */
export function said(sentence: string): string {
  return language.value === "zh" ? inChinese(sentence) : sentence;
}

/** Three significant digits at most, with thousands grouped. */
export function number(value: number): string {
  const digits = value !== 0 && Math.abs(value) < 0.095 ? 2 : Math.abs(value) < 10 ? 1 : 0;
  return value.toLocaleString(locale(), { maximumFractionDigits: digits });
}

export function rate(value: number): string {
  return t("unit.perSecond", { n: value > 0 && value < 0.01 ? "<0.01" : number(value) });
}

/** A share as percent. Nothing below 1 is rounded to 100%. */
export function percent(share: number | null): string {
  if (share === null) return "–";
  const value = share * 100;
  if (value >= 99.95 && value < 100) return "99.9%";
  return `${value === 100 || value < 0.05 ? Math.round(value) : value.toFixed(1)}%`;
}

export function milliseconds(value: number | null): string {
  if (value === null) return "–";
  if (value >= 10_000) return `${number(value / 1000)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
}

export function bytes(value: number | null): string {
  if (value === null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(value) / 10));
  return `${number(value / 1024 ** power)} ${units[power]}`;
}

/** CPU as a share of one core. */
export function cores(value: number | null): string {
  return value === null ? "–" : `${number(value * 100)}%`;
}

export function clock(at: number): string {
  return new Date(at * 1000).toLocaleTimeString(locale(), { hour12: false });
}

export function dateTime(at: number): string {
  return new Date(at * 1000).toLocaleString(locale(), { dateStyle: "medium", timeStyle: "short", hour12: false });
}

function span(prefix: "ago" | "left", seconds: number): string {
  const [n, unit] =
    seconds < 90
      ? [seconds, "s"]
      : seconds < 5400
        ? [seconds / 60, "m"]
        : seconds < 129_600
          ? [seconds / 3600, "h"]
          : [seconds / 86_400, "d"];
  return t((prefix === "ago" ? `ago.${unit}` : `left.${unit}`) as TextKey, { n: Math.round(n as number) });
}

export function ago(at: number, now: number): string {
  const seconds = now - at;
  return seconds < 5 ? t("ago.now") : span("ago", seconds);
}

export function duration(seconds: number): string {
  return span("left", Math.max(0, seconds));
}
