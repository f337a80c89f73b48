// Chromium, once for all cases: prints where it listens, and ends when its standard input is closed.
import { playwright } from "./modules.mjs";

const server = await playwright.chromium.launchServer({
    executablePath: process.env.FRESHET_CHROMIUM || "/usr/bin/chromium",
    host: "127.0.0.1",
    args: process.getuid() === 0 ? ["--no-sandbox"] : [],
});
process.stdout.write(`${server.wsEndpoint()}\n`);
process.stdin.resume();
process.stdin.on("end", async () => {
    await server.close();
    process.exit(0);
});
