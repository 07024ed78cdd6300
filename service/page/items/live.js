// Says when there is something new in a group, as it happens.

import { Failure, get } from "../base/api.js";

const WAIT = "25"; // seconds the service holds a request without news
const PAUSE_MS = 5_000; // after a failure, and while the tab is not looked at
const PAGE = "1000";

/** Count what becomes readable after id `from` until `signal` ends; call `news({created, changed})` for each change. */
export async function watch(desk, filters, from, signal, news) {
  const counts = { created: 0, changed: 0 };
  let cursor = from;
  while (!signal.aborted) {
    if (document.hidden) {
      await pause(signal);
      continue;
    }
    try {
      const params = { ...filters, until: "", limit: PAGE, cursor: String(cursor), wait: WAIT, fields: "output_id,create_date,update_date" };
      const asked = performance.now();
      const { items, metadata } = await get(["outputs", desk.view.group], params, signal, { quiet: true });
      for (const { id, output_id, create_date, update_date } of items) {
        cursor = Math.max(cursor, id);
        if (desk.own.has(id) || desk.pending.has(output_id)) continue;
        counts[create_date === update_date ? "created" : "changed"] += 1;
      }
      cursor = Math.max(cursor, metadata.next_cursor ?? 0);
      if (items.length) news(counts);
      else if (performance.now() - asked < 1000 && metadata.next_cursor === null) await pause(signal); // it stops, and does not wait
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Failure) || [403, 422].includes(error.status)) return;
      await pause(signal);
    }
  }
}

function pause(signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(done, PAUSE_MS);
    function done() {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      document.removeEventListener("visibilitychange", done);
      resolve();
    }
    signal.addEventListener("abort", done);
    document.addEventListener("visibilitychange", done);
  });
}
