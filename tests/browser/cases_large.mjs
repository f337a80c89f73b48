// Much of everything: a page shows a page, however much there is.
import assert from "node:assert/strict";

export const cases = {};

const rows = (tab) => tab.page.locator("tbody tr").count();

cases["a dictionary with very many items is browsed and searched page by page"] = async ({ open, settings }) => {
    const tab = await (await open()).enter();
    await tab.to("dictionaries", "demo", "LARGE");
    await tab.shows("key-0000001");
    await tab.shows(settings.items.toLocaleString("en"));
    assert.ok((await rows(tab)) <= 60);
    await tab.page.getByRole("button", { name: "Next" }).click();
    await tab.shows("key-0000051");
    await tab.lacks("key-0000001");
    await tab.page.getByRole("button", { name: "Previous" }).click();
    await tab.shows("key-0000001");
    const last = `key-${String(settings.items).padStart(7, "0")}`;
    await tab.page.getByLabel("Keys that begin with").fill(last.slice(0, -1));
    await tab.page.keyboard.press("Enter");
    await tab.shows(last);
    await tab.page.getByRole("link", { name: last }).click();
    await tab.page.locator("#main pre", { hasText: String(settings.items) }).waitFor();
};

cases["very many dead letters are paged, and all of them are counted before they are discarded"] = async ({ open, settings }) => {
    const tab = await (await open()).enter();
    await tab.to("dead-letters");
    await tab.shows(settings.letters >= 10000 ? "10,000+" : String(settings.letters).slice(0, 1));
    await tab.to("dead-letters", "refdata.commands.dlq");
    await tab.shows("one of many");
    assert.ok((await rows(tab)) <= 50);
    const first = await tab.page.locator("tbody th").first().innerText();
    await tab.page.getByRole("button", { name: "Next" }).click();
    await tab.shows("Page 2");
    assert.notEqual(await tab.page.locator("tbody th").first().innerText(), first);
    await tab.page.getByRole("button", { name: "Discard all matching dead letters" }).click();
    const note = tab.page.getByRole("dialog").locator(".note", { hasText: "dead letters match" });
    await note.waitFor();
    assert.ok(Number((await note.locator("b").first().innerText()).replaceAll(",", "")) >= Math.min(settings.letters, 10000));
    await tab.page.keyboard.press("Escape");
};
