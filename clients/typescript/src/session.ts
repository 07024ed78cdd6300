import { ServiceError, SessionLost } from "./errors.js";
import { now, pathOf, sleep, type Transport } from "./transport.js";
import type { Stoppable } from "./types.js";

export interface SessionOptions extends Stoppable {
  /** Seconds to wait for a session that is ready; default 0. */
  wait?: number;
  /** Seconds of one lease, which is renewed in the background; default: the pool's. */
  seconds?: number;
  /** This session and no other. */
  name?: string;
  /** Who holds it, for people who look at the pool. */
  owner?: string;
  /** Read only, beside others: nothing is saved. */
  shared?: boolean;
}

/** As Playwright saves and loads it. */
export interface StorageState {
  cookies: { name: string; value: string; domain: string; path: string; expires: number; httpOnly: boolean; secure: boolean; sameSite?: "Strict" | "Lax" | "None" }[];
  origins: { origin: string; localStorage: { name: string; value: string }[] }[];
}

export type Outcome = "good" | "bad" | "blocked" | "logged_out" | "interrupted" | "unused";

interface Lease {
  lease_id: string;
  seconds: number;
  session: { name: string; storage_state: StorageState | null; user_data: Record<string, unknown> | null };
}

// The service holds a request for at most a minute.
const MAX_WAIT = 60;
// The clocks of the database's members may differ by this much.
const CLOCKS = 1;

/** A browser identity that nobody else uses while this one lasts. Disposed of without an outcome, it is `bad`. */
export class Session {
  readonly name: string;
  readonly storage_state: StorageState | null;
  readonly user_data: Record<string, unknown>;
  readonly #transport: Transport;
  readonly #path: string;
  readonly #lost = new AbortController();
  readonly #seconds: number | undefined;
  #end: number;
  #renewal: ReturnType<typeof setTimeout> | undefined;
  #expiry: ReturnType<typeof setTimeout> | undefined;
  #outcome: Outcome | undefined;
  #state: StorageState | undefined;
  #hasEnded = false;

  private constructor(transport: Transport, readonly pool: string, lease: Lease, asked: number, seconds?: number) {
    [this.#transport, this.#seconds] = [transport, seconds];
    this.#path = pathOf("leases", lease.lease_id);
    this.name = lease.session.name;
    this.storage_state = lease.session.storage_state;
    this.user_data = lease.session.user_data ?? {};
    this.#end = asked + lease.seconds - CLOCKS;
  }

  /** Take a session from a pool. Rejects with ServiceError (409 `no_session`) when none becomes ready in time. */
  static async take(transport: Transport, pool: string, options: SessionOptions): Promise<Session> {
    const { wait = 0, signal, ...wanted } = options;
    const end = now() + wait;
    // The service returns the same lease when the request is repeated.
    let lease_id = newLeaseId();
    for (;;) {
      const held = Math.max(0, Math.min(MAX_WAIT, Math.ceil(end - now())));
      const asked = now();
      try {
        const value = { ...wanted, lease_id, wait: held };
        const lease = await transport.send<Lease>("POST", pathOf("sessions", pool, "lease"), value, { wait: held, signal });
        const session = new Session(transport, pool, lease, asked, wanted.seconds);
        if (session.#end - now() < lease.seconds / 2) await session.#renew(); // it waited long: the lease is younger
        else session.#schedule();
        return session;
      } catch (error) {
        if (!(error instanceof ServiceError) || !error.hasType("no_session") || end - now() < 1) throw error;
        lease_id = newLeaseId();
        await sleep(Math.min(error.retryAfter ?? 1, 1), signal);
      }
    }
  }

  /** Aborted with SessionLost when the session is no longer ours: stop the browser then. */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /** Keep the state of the browser now, and when the session ends. */
  async save(storage_state: StorageState, user_data?: Record<string, unknown>): Promise<void> {
    this.#state = storage_state;
    await this.#renew({ storage_state, user_data });
  }

  /** The site has blocked this identity. */
  blocked(): void {
    this.#outcome = "blocked";
  }

  /** The site has logged this identity out: somebody must log in again. */
  loggedOut(): void {
    this.#outcome = "logged_out";
  }

  /** Give the session back. An outcome of `blocked()` or `loggedOut()` wins over the one given. */
  async release(outcome: Outcome = "good", state = this.#state): Promise<void> {
    this.#lost.signal.throwIfAborted();
    if (this.#hasEnded) return;
    this.#stop();
    const said = this.#outcome ?? outcome;
    const storage_state = said === "good" || said === "bad" ? state : undefined;
    await this.#send("POST", `${this.#path}/release`, { outcome: said, storage_state });
  }

  /** Run `work` with this session and release it with what became of it. */
  async lend<Value>(work: (session: Session) => Promise<Value>, signal?: AbortSignal): Promise<Value> {
    const stopped = new Promise<never>((_, reject) => {
      this.signal.addEventListener("abort", () => reject(this.signal.reason), { once: true });
    });
    let value: Value;
    try {
      value = await Promise.race([work(this), stopped]);
    } catch (error) {
      if (!this.signal.aborted) await this.release(signal?.aborted ? "interrupted" : "bad").catch(() => undefined);
      throw error;
    }
    await this.release(signal?.aborted ? "interrupted" : "good");
    return value;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#lost.signal.aborted) await this.release("bad");
  }

  async #renew(body: Record<string, unknown> = {}): Promise<void> {
    const asked = now();
    const { seconds } = await this.#send<{ seconds: number }>("PUT", this.#path, { seconds: this.#seconds, ...body });
    this.#end = Math.max(this.#end, asked + seconds - CLOCKS);
    if (!this.#hasEnded) this.#schedule();
  }

  /** Renew after a third of the time that is left; when it is over, the session is lost. */
  #schedule(): void {
    clearTimeout(this.#renewal);
    clearTimeout(this.#expiry);
    const left = Math.max(0, this.#end - now());
    // A renewal that fails for good leaves the session until its time is over.
    this.#renewal = later(left / 3, () => void this.#renew().catch(() => undefined));
    this.#expiry = later(left, () => this.#lose());
  }

  #lose(): void {
    this.#stop();
    this.#lost.abort(new SessionLost(`the session ${this.name} of ${this.pool} is no longer ours`));
  }

  #stop(): void {
    this.#hasEnded = true;
    clearTimeout(this.#renewal);
    clearTimeout(this.#expiry);
  }

  async #send<Value>(method: string, path: string, value: unknown): Promise<Value> {
    try {
      return await this.#transport.send<Value>(method, path, value);
    } catch (error) {
      if (!(error instanceof ServiceError) || !error.hasType("lease_lost")) throw error;
      this.#lose();
      throw this.#lost.signal.reason;
    }
  }
}

/** Like setTimeout, in seconds; it does not keep the process alive. */
function later(seconds: number, call: () => void): ReturnType<typeof setTimeout> {
  const timer = setTimeout(call, seconds * 1000);
  (timer as { unref?: () => void }).unref?.();
  return timer;
}

function newLeaseId(): string {
  return crypto.randomUUID().replaceAll("-", "");
}
