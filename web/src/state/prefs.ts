/** What a person chose for this page, kept by the browser: colours and language. */
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
export type Language = "en" | "zh";

function stored(name: string): string | null {
  try {
    return localStorage.getItem(`tulle.${name}`);
  } catch {
    return null; // Storage may be forbidden; choices then last as long as the page.
  }
}

function store(name: string, value: string): void {
  try {
    localStorage.setItem(`tulle.${name}`, value);
  } catch {
    // As above.
  }
}

const THEMES: Theme[] = ["system", "light", "dark"];

function firstTheme(): Theme {
  const chosen = stored("theme") as Theme | null;
  return chosen && THEMES.includes(chosen) ? chosen : "system";
}

function firstLanguage(): Language {
  const chosen = stored("language");
  if (chosen === "en" || chosen === "zh") return chosen;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export const theme = signal<Theme>(firstTheme());
export const language = signal<Language>(firstLanguage());
const systemDark = matchMedia("(prefers-color-scheme: dark)");
/** Changes when colours do: charts are drawn anew. */
export const dark = signal(false);

function colour(): void {
  dark.value = theme.value === "dark" || (theme.value === "system" && systemDark.matches);
  document.documentElement.dataset.theme = dark.value ? "dark" : "light";
}

export function applyPrefs(): void {
  effect(() => {
    store("theme", theme.value);
    colour();
  });
  effect(() => {
    store("language", language.value);
    document.documentElement.lang = language.value === "zh" ? "zh-Hans" : "en";
  });
  systemDark.addEventListener("change", colour);
}

export function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]!;
}

export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
