// Crawl a shop with CheerioCrawler: node cheerio.mjs https://shop.example/ lamps
// With a third argument, every crawler session is an account of that pool.
import { CheerioCrawler, Configuration, Session } from "@crawlee/cheerio";
import { Client } from "scraping-data-client";
import { SdsDataset, SdsSessions } from "scraping-data-client/crawlee";

const [start, group, pool] = process.argv.slice(2);
const client = new Client(); // SDS_URL and SDS_TOKEN
const sessions = pool && new SdsSessions(client, pool, { Session, wait: 60 });

const job = await client.crawl(group, `cheerio-${Date.now()}`, { missing: "delete" }, async (crawl) => {
  const dataset = new SdsDataset(crawl, { keyFields: ["sku"] });
  const crawler = new CheerioCrawler(
    {
      useSessionPool: true,
      persistCookiesPerSession: true,
      ...(sessions && { sessionPoolOptions: sessions.poolOptions }),
      async requestHandler({ $, request, enqueueLinks }) {
        await enqueueLinks({ selector: "a.product" });
        if ($(".sku").length === 0) return;
        await dataset.pushData({
          url: request.loadedUrl,
          sku: $(".sku").text(),
          title: $("h1").text(),
          price: Number($(".price").text()),
        });
      },
    },
    new Configuration({ persistStorage: false }),
  );
  try {
    const { requestsFailed } = await crawler.run([start]);
    // A crawl that did not see every page must not delete what it missed.
    if (requestsFailed) throw new Error(`${requestsFailed} pages failed`);
  } finally {
    if (sessions) await sessions.release();
  }
});
console.log(JSON.stringify({ state: job.state, items: job.items, deleted: job.deleted }));
