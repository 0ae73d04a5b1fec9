/**
 * The live stream of the mesh: opens `/events`, and after a loss tries again with growing pauses.
 *
 * An EventSource does not say why it failed. Before each new attempt the session is asked for: then an expired session
 * and a controller that is away can be told apart.
 */
import { ApiError, get, url } from "./client.ts";
import type { GraphDelta, Mark, Session } from "./types.ts";

export interface StreamHandlers {
  open(session: Session): void;
  graph(delta: GraphDelta): void;
  findings(count: { count: number; errors: number }): void;
  mark(mark: Mark): void;
  offline(retryInMs: number): void;
  expired(): void;
}

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 15_000;
/** A stream sends something every 5 s. After so long without a word the connection is considered dead. */
const SILENCE = 20_000;
/** A stream that lasted so long is opened again at once when it breaks: that is no outage yet. */
const LASTED = 5000;

/** The pause before attempt `n`, counted from 0: doubles up to a limit, with up to a fifth of chance on top. */
export function pause(attempt: number, chance = Math.random()): number {
  return Math.min(FIRST_PAUSE * 2 ** attempt, LONGEST_PAUSE) * (1 + chance / 5);
}

export class Stream {
  private source: EventSource | null = null;
  private attempt = 0;
  private opened = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private watchdog: ReturnType<typeof setTimeout> | undefined;
  private ended = false;

  constructor(private readonly to: StreamHandlers) {}

  /** Connects now, whatever pause is under way. */
  connect(): void {
    this.ended = false;
    this.drop();
    void this.attach();
  }

  end(): void {
    this.ended = true;
    this.drop();
  }

  /** Closes the stream until `connect` is called. */
  drop(): void {
    clearTimeout(this.timer);
    clearTimeout(this.watchdog);
    this.source?.close();
    this.source = null;
  }

  private async attach(): Promise<void> {
    try {
      const session = await get<Session>("session");
      if (this.ended) return;
      this.to.open(session);
      this.listen();
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) this.expire();
      else this.retry();
    }
  }

  /** The stream broke. */
  private broken(): void {
    const lasted = Date.now() - this.opened > LASTED;
    if (this.attempt > 0 || !lasted || this.ended) this.retry();
    else {
      this.attempt = 1;
      this.drop();
      void this.attach();
    }
  }

  /** The session is over: nothing is tried any more. */
  expire(): void {
    if (this.ended) return;
    this.end();
    this.to.expired();
  }

  private retry(): void {
    this.drop();
    if (this.ended) return;
    const wait = pause(this.attempt++);
    this.to.offline(wait);
    this.timer = setTimeout(() => void this.attach(), wait);
  }

  private alive(): void {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.broken(), SILENCE);
  }

  private listen(): void {
    const source = new EventSource(url("events"));
    this.source = source;
    this.opened = Date.now();
    this.alive();
    const on = <T>(name: string, then: (data: T) => void) =>
      source.addEventListener(name, (event) => {
        this.alive();
        then(JSON.parse((event as MessageEvent<string>).data) as T);
      });
    on<GraphDelta>("graph", (delta) => {
      this.attempt = 0;
      this.to.graph(delta);
    });
    on<{ count: number; errors: number }>("findings", (count) => this.to.findings(count));
    on<Mark>("mark", (mark) => this.to.mark(mark));
    on<{ reason: string }>("end", ({ reason }) => (reason === "session_expired" ? this.expire() : this.broken()));
    source.onerror = () => this.broken();
  }
}
