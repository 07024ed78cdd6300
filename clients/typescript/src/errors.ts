import type { Problem } from "./types.js";

/** A response other than success (`status`), or no response (`status` 0). */
export class ServiceError extends Error {
  override name = "ServiceError";
  /** Seconds that the service asked to wait. */
  retryAfter: number | undefined;

  constructor(
    readonly status: number,
    readonly problems: readonly Problem[] = [],
    message = "",
    options?: ErrorOptions,
  ) {
    const listed = problems.slice(0, 5).map((problem) => [problem.loc.join("."), problem.msg].filter(Boolean).join(": "));
    const more = problems.length > 5 ? ` (and ${problems.length - 5} more)` : "";
    const text = (message || listed.join("; ") || "no reason given") + more;
    super(status ? `${status}: ${text}` : text, options);
  }

  /** Return whether one of the problems has this type, such as `cursor_expired`. */
  hasType(type: string): boolean {
    return this.problems.some((problem) => problem.type === type);
  }
}

/** The session's time is over, or its lease has ended: the browser that uses it must stop. */
export class SessionLost extends Error {
  override name = "SessionLost";
}
