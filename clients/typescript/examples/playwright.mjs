// Crawl a shop with PlaywrightCrawler: node playwright.mjs https://shop.example/ lamps
// CHROMIUM names a browser other than Playwright's own.
import { Configuration, PlaywrightCrawler } from "@crawlee/playwright";
import { Client } from "scraping-data-client";
import { SdsDataset } from "scraping-data-client/crawlee";

const [start, group] = process.argv.slice(2);
const client = new Client(); // SDS_URL and SDS_TOKEN

const job = await client.crawl(group, `playwright-${Date.now()}`, { missing: "delete" }, async (crawl) => {
  const dataset = new SdsDataset(crawl, { keyFields: ["sku"] });
  const launchOptions = process.env.CHROMIUM
    ? { executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] } // as root there is no sandbox
    : {};
  const crawler = new PlaywrightCrawler(
    {
      headless: true,
      launchContext: { launchOptions },
      async requestHandler({ page, request, enqueueLinks }) {
        await enqueueLinks({ selector: "a.product" });
        if ((await page.locator(".sku").count()) === 0) return;
        await dataset.pushData({
          url: request.loadedUrl,
          sku: await page.locator(".sku").innerText(),
          title: await page.locator("h1").innerText(),
          price: Number(await page.locator(".price").innerText()),
        });
      },
    },
    new Configuration({ persistStorage: false }),
  );
  const { requestsFailed } = await crawler.run([start]);
  if (requestsFailed) throw new Error(`${requestsFailed} pages failed`);
});
console.log(JSON.stringify({ state: job.state, items: job.items, deleted: job.deleted }));
