// What an operator changes: requeue, discard, retry, with a dry run and a reason.
import assert from "node:assert/strict";

export const cases = {};

const dialog = (tab) => tab.page.getByRole("dialog");

cases["a dead letter is requeued after a dry run and a reason, and is delivered"] = async ({ open, ask }) => {
    const tab = await (await open()).enter();
    await ask("configure", "LATER");
    await tab.to("dead-letters", "refdata.commands.dlq");
    const row = tab.page.locator("tbody tr", { hasText: "LATER" }).filter({ hasText: "demo" }).first();
    await row.getByRole("checkbox").check();
    await tab.shows("1 selected");
    await tab.page.getByRole("button", { name: "Requeue the selected dead letters" }).click();
    await dialog(tab).getByText("match and would be changed").waitFor();
    await dialog(tab).getByRole("button", { name: "Requeue" }).click();
    await dialog(tab).getByText("Please write down why").waitFor();
    await tab.page.getByLabel("Reason", { exact: true }).last().fill("the dictionary is configured now");
    await dialog(tab).getByRole("button", { name: "Requeue" }).click();
    await tab.shows("1 of 1 dead letters changed");
    await tab.to("dictionaries", "demo", "LATER");
    await tab.page.waitForFunction(async () => {
        if (/k[012]/.test(document.querySelector("table[aria-label=Keys]")?.innerText ?? "")) return true;
        document.querySelector("form.filters button[type=submit]").click(); // until it was applied
        await new Promise((resolve) => setTimeout(resolve, 300));
        return false;
    });
    await tab.to("audit");
    await tab.shows("the dictionary is configured now");
};

cases["a letter that is discarded leaves the list of open ones"] = async ({ open }) => {
    const tab = await (await open()).enter();
    await tab.to("dead-letters", "refdata.commands.dlq");
    const first = tab.page.locator("tbody tr").first();
    const id = (await first.getByRole("link").innerText()).trim();
    await first.getByRole("link").click();
    await tab.shows("Headers");
    await tab.page.getByRole("button", { name: "Discard" }).click();
    await dialog(tab).getByText("would be changed").waitFor();
    await tab.page.getByLabel("Reason", { exact: true }).fill("made by hand");
    await dialog(tab).getByRole("button", { name: "Discard" }).click();
    await tab.shows("discarded");
    await tab.to("dead-letters", "refdata.commands.dlq");
    assert.equal(await tab.page.getByRole("link", { name: id, exact: true }).count(), 0);
    await tab.page.getByLabel("State").selectOption("discarded");
    await tab.page.getByRole("link", { name: id, exact: true }).waitFor();
};

cases["stuck events are retried by their filter and published"] = async ({ open, ask }) => {
    const tab = await (await open()).enter();
    await tab.to("outboxes", "chat.event_outbox");
    await tab.shows("nats: no responders");
    await tab.page.getByRole("button", { name: "Retry all matching events" }).click();
    await dialog(tab).getByText("would be changed").waitFor();
    assert.equal(await ask("query", "select count(*) from chat.event_outbox where status = 'failed'"), 2, "the dry run changed something");
    await tab.page.getByLabel("Reason", { exact: true }).fill("NATS answers again");
    await dialog(tab).getByRole("button", { name: "Retry" }).click();
    await tab.shows("events changed");
    for (let tries = 0; (await ask("query", "select count(*) from chat.event_outbox where status <> 'published'")) > 0; tries++) {
        assert.ok(tries < 300, "they were not published");
        await tab.page.waitForTimeout(100);
    }
    await tab.page.getByRole("button", { name: "Refresh" }).click();
    await tab.shows("Nothing is stuck");
};

cases["a dialog keeps the focus, ends by Escape, and gives the focus back"] = async ({ open }) => {
    const tab = await (await open()).enter();
    await tab.to("dead-letters", "refdata.commands.dlq");
    const button = tab.page.getByRole("button", { name: "Discard all matching dead letters" });
    await button.focus();
    await tab.page.keyboard.press("Enter");
    await dialog(tab).waitFor();
    await tab.accessible("the dialog");
    for (let step = 0; step < 8; step++) {
        await tab.page.keyboard.press("Tab");
        assert.ok(await tab.page.evaluate(() => document.activeElement === document.body || document.activeElement.closest("dialog") !== null));
    }
    await tab.page.keyboard.press("Escape");
    await dialog(tab).waitFor({ state: "detached" });
    assert.ok(await button.evaluate((element) => element === document.activeElement));
};

cases["a token without ops:write is told so, and nothing is changed"] = async ({ open, settings, ask }) => {
    const tab = await (await open()).enter(settings.tokens.read);
    await tab.to("dead-letters", "refdata.commands.dlq");
    await tab.page.getByRole("button", { name: "Discard all matching dead letters" }).click();
    await dialog(tab).getByText("does not have the scope").waitFor();
    assert.equal(await dialog(tab).getByRole("button", { name: "Discard" }).isDisabled(), true);
    assert.equal(await ask("query", "select count(*) from platform.ops_audit where reason = 'dry run'"), 0);
};
