import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

import { Client, type OutputInput } from "../src/index.js";

/** A group of its own for each test. */
export function newGroup(): string {
  return `group-${crypto.randomUUID()}`;
}

/** A client of the service that SDS_URL and SDS_TOKEN name. */
export function newClient(): Client {
  return new Client();
}

export function lamp(number: number, more: Partial<OutputInput> = {}): OutputInput {
  return {
    source_url: `https://lamps.example/${number}`,
    root_job_id: "monday",
    key_hash: `lamp-${number}`,
    data: { title: `Lamp ${number}`, price: 20 + number },
    ...more,
  };
}

export function lamps(length: number): OutputInput[] {
  return Array.from({ length }, (_, number) => lamp(number));
}

export async function collect<Value>(values: AsyncIterable<Value>): Promise<Value[]> {
  const all: Value[] = [];
  for await (const value of values) all.push(value);
  return all;
}

export interface Received {
  method: string;
  path: string;
  body: string;
  token: string | undefined;
}

/** A server that answers as the test says. */
export async function serve(
  respond: (received: Received, response: ServerResponse, index: number) => void,
): Promise<{ url: string; requests: Received[]; close: () => void }> {
  const requests: Received[] = [];
  const server: Server = createServer((request: IncomingMessage, response) => {
    const pieces: Buffer[] = [];
    request.on("data", (piece: Buffer) => pieces.push(piece));
    request.on("end", () => {
      const received = {
        method: request.method ?? "",
        path: request.url ?? "",
        body: Buffer.concat(pieces).toString(),
        token: request.headers.authorization,
      };
      requests.push(received);
      respond(received, response, requests.length - 1);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}

export function json(response: ServerResponse, value: unknown, status = 200, headers: Record<string, string> = {}): void {
  response.writeHead(status, { "Content-Type": "application/json", ...headers }).end(JSON.stringify(value));
}
