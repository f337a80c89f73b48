// Runs one case: node run.mjs FILE NAME. Status 0 when it passed; the reason of a failure is on standard error.
import { createInterface } from "node:readline";
import { Console } from "./console.mjs";
import { playwright } from "./modules.mjs";

const [file, name] = process.argv.slice(2);
const settings = JSON.parse(process.env.BROWSER_SETTINGS);
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** What only the test's own process can do; its answer. */
async function ask(...question) {
    process.stdout.write(`${JSON.stringify({ ask: question })}\n`);
    return JSON.parse((await answers.next()).value);
}

const { cases } = await import(`./${file}`);
const browser = await playwright.chromium.connect(process.env.BROWSER_ENDPOINT);
const opened = [];

/** A tab of its own with the console in it: open({viewport, colorScheme, …}). */
async function open(options = {}) {
    const made = await Console.open(browser, settings, options);
    opened.push(made);
    return made;
}

let status = 0;
try {
    await cases[name]({ open, ask, settings });
    for (const each of opened) await each.check();
} catch (error) {
    process.stderr.write(`${error.stack ?? error}\n`);
    for (const each of opened) process.stderr.write(`${await each.describe()}\n`);
    status = 1;
}
for (const each of opened) await each.close();
await browser.close();
process.exit(status);
