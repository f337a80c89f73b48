// playwright-core and axe-core, from where ./dev fetched them.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const folder = process.env.FRESHET_BROWSER_MODULES;
if (!folder) throw new Error("FRESHET_BROWSER_MODULES must name the folder of playwright-core; ./dev test browser sets it");
const require = createRequire(join(folder, "none.js"));

export const playwright = require("playwright-core");
export const axe = readFileSync(join(folder, "axe-core/axe.min.js"), "utf8");
