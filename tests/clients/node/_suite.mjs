// What the client scripts share; see ../python/_suite.py. A mode is an async function (base URL, model) → answer.
import { readFile } from "node:fs/promises";

export const QUESTION = "What is the capital of France? Answer in one sentence."; // without the second, SmolLM2 wavers
export const MESSAGES = [{ role: "user", content: QUESTION }];
export const LIMITS = { temperature: 0, max_tokens: 32 };

export async function main(name, modes) {
  const [baseURL, model] = process.argv.slice(2);
  const results = {};
  await Promise.all(
    Object.entries(modes).map(async ([mode, run]) => {
      const started = performance.now();
      try {
        results[mode] = { error: null, role: null, prompt: QUESTION, details: {}, ...(await run(baseURL, model)) };
      } catch (error) {
        results[mode] = { error: `${error?.stack ?? error}\ncause: ${error?.cause ?? "none"}` };
      }
      results[mode].seconds = (performance.now() - started) / 1000;
    }),
  );
  // Not import.meta.resolve: packages hide their package.json behind "exports".
  const manifest = new URL(`./node_modules/${name}/package.json`, import.meta.url);
  const { version } = JSON.parse(await readFile(manifest, "utf8"));
  console.log(JSON.stringify({ package: name, version, modes: results }));
}
