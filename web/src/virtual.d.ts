declare module "virtual:reasons" {
  /** Causes and cures of `docs/reasons.md` by reason code. */
  const reasons: Record<string, { cause: string; fix: string }>;
  export default reasons;
}
