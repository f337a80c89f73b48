// The pictures of docs/CONSOLE.md and of the README, made in settings.folder.
import { stat } from "node:fs/promises";
import assert from "node:assert/strict";

export const cases = {};

const PLOT_MS = 90000; // so much of the plots is filled
const BYTES_MIN = 20000; // an empty page has less

async function picture(tab, folder, name) {
    const path = `${folder}/console_${name}.png`;
    await tab.page.screenshot({ path, animations: "disabled" });
    assert.ok((await stat(path)).size > BYTES_MIN, `${path} shows nothing`);
}

cases["the main pages"] = async ({ open, settings }) => {
    const light = await (await open({ viewport: { width: 1280, height: 800 } })).enter();
    const dark = await (await open({ viewport: { width: 1280, height: 800 }, colorScheme: "dark" })).enter();
    await light.page.waitForTimeout(PLOT_MS);
    await picture(light, settings.folder, "overview");
    await picture(dark, settings.folder, "overview_dark");
    await light.to("dictionaries", "demo", "PRICE");
    await light.page.waitForTimeout(5000); // some live changes
    await picture(light, settings.folder, "dictionary");
    await light.to("updates");
    await light.page.locator("tr", { hasText: "COMMITTED" }).getByRole("link").first().click();
    await light.shows("Timeline");
    await light.settled();
    await picture(light, settings.folder, "update");
    await light.to("dead-letters", "refdata.commands.dlq");
    await picture(light, settings.folder, "dead_letters");
};
