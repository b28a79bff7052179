// Loads a package of npm from where the suite installed it, which is not beside these files.
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(join(process.env.SANDCRATE_NODE_CLIENT, "package.json"));

export const load = (name) => import(pathToFileURL(require.resolve(name)).href);

export const PATIENCE_MS = 30_000;

/// The first answer that will do.
export async function until(what, ask, done = Boolean) {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    const answer = await ask();
    if (done(answer)) return answer;
    if (Date.now() > deadline) throw new Error(`waited in vain for ${what}; last: ${JSON.stringify(answer)}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
