/** Asks the controller over HTTP. Every refusal becomes an `ApiError` with what helps. */

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly fix: string,
  ) {
    super(message);
  }
}

/** The controller cannot be reached at all. */
export class Offline extends Error {}

let csrf = "";

/** Remembers the session's token, which every action has to carry. */
export function setCsrf(token: string): void {
  csrf = token;
}

let onNoSession = () => {};

/** Says whom to tell when the controller knows the session no longer. */
export function whenNoSession(then: () => void): void {
  onNoSession = then;
}

type Query = Record<string, string | number | boolean | null | undefined>;

/** Returns `/api/v1/<path>` with the query's fields that are set. */
export function url(path: string, query: Query = {}): string {
  const fields = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "" && value !== false) fields.set(name, String(value));
  }
  const text = fields.toString();
  return `/api/v1/${path}${text ? `?${text}` : ""}`;
}

async function request<T>(target: string, init: RequestInit): Promise<T> {
  let response: Response;
  try {
    response = await fetch(target, { credentials: "same-origin", ...init });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Offline("the controller does not answer");
  }
  const text = await response.text();
  if (response.status === 401) onNoSession();
  if (!response.ok) throw refusal(response.status, text);
  return (text ? JSON.parse(text) : {}) as T;
}

/** Reads the body of a refusal; whatever is not the controller's own form is shown by its status. */
export function refusal(status: number, body: string): ApiError {
  try {
    const { error } = JSON.parse(body) as { error: { code: string; message: string; fix?: string } };
    return new ApiError(status, error.code, error.message, error.fix ?? "");
  } catch {
    return new ApiError(status, `http_${status}`, `HTTP ${status}`, "");
  }
}

export function get<T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> {
  return request<T>(url(path, query), signal ? { signal } : {});
}

export function post<T>(path: string, body: unknown): Promise<T> {
  const headers: Record<string, string> = { "content-type": "application/json" };
  if (csrf) headers["x-tulle-csrf"] = csrf;
  return request<T>(url(path), { method: "POST", headers, body: JSON.stringify(body) });
}
