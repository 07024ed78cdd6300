/** Return the path of a resource below /v1, its parts quoted. */
export function pathOf(...parts: string[]): string {
  return ["/v1", ...parts.map(encodeURIComponent)].join("/");
}
