// Look at pages in a headless browser: 1,280 and 390 pixels wide, light and dark.
//
//   npm install --no-save --prefix build axe-core playwright-core
//   node tools/look_at_pages.mjs build/gate/report.html site/index.html site/rules/index.html
//
// Takes a screenshot of each into build/pages, and exits with 1 where a page is wider than the window, where it loads
// anything from elsewhere, or where axe finds a violation of level serious or critical. CHROMIUM names the browser.
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, dirname, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const OUT = "build/pages";
const installed = createRequire(resolve("build/node_modules/_"));
const { chromium } = installed("playwright-core");
const axe = readFileSync(installed.resolve("axe-core/axe.min.js"), "utf8");
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
mkdirSync(OUT, { recursive: true });
let wrong = 0;
const complain = (where, what) => { wrong += 1; console.log(`${where}: ${what}`); };

for (const file of process.argv.slice(2)) {
  const name = `${basename(dirname(resolve(file)))}-${basename(file, ".html")}`;
  for (const width of [1280, 390]) {
    for (const colorScheme of ["light", "dark"]) {
      const where = `${name}-${width}-${colorScheme}`;
      const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme, bypassCSP: true });
      page.on("request", (request) => { if (/^https?:/.test(request.url())) complain(where, `loads ${request.url()}`); });
      await page.goto(pathToFileURL(resolve(file)).href, { waitUntil: "load" });
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      if (wide > width) complain(where, `${wide} pixels wide`);
      await page.addScriptTag({ content: axe });
      const { violations } = await page.evaluate(() => axe.run());
      for (const { id, impact, nodes } of violations) {
        const text = `axe ${impact} ${id}, ${nodes.length} times, such as ${nodes[0].target} ${nodes[0].html.replace(/\s+/g, " ").slice(0, 120)}`;
        if (["serious", "critical"].includes(impact)) complain(where, text);
        else console.log(`${where}: (${text})`);
      }
      await page.screenshot({ path: `${OUT}/${where}.png`, clip: { x: 0, y: 0, width, height: 2400 }, fullPage: true });
      await page.close();
    }
  }
}
await browser.close();
console.log(wrong ? `${wrong} complaints` : "no complaints", `· screenshots in ${OUT}`);
process.exit(wrong ? 1 : 0);
