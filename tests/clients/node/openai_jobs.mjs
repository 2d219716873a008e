// openai-node, unchanged: responses in the background, polled and followed, and a batch of as many lines as the third
// argument says. See ../python/openai_jobs.py.
import OpenAI, { toFile } from "openai";
import { QUESTION, main } from "./_suite.mjs";

const LINES = Number(process.argv[4]);
const PROMPT = "The capital of France is";
const WAITING = ["queued", "in_progress"];
const GOING_ON = ["validating", "in_progress", "finalizing"];
const LAST = ["response.completed", "response.incomplete", "response.failed"];
const client = (baseURL) => new OpenAI({ baseURL, apiKey: "none" });
const ask = (model, more = {}) => ({ model, input: QUESTION, temperature: 0, max_output_tokens: 32, ...more });
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function plain(baseURL, model) {
  return { text: (await client(baseURL).responses.create(ask(model))).output_text };
}

async function stream(baseURL, model) {
  const events = client(baseURL).responses.stream(ask(model));
  let text = "";
  events.on("response.output_text.delta", (event) => (text += event.delta));
  const final = await events.finalResponse();
  if (final.output_text !== text) throw new Error(`the helper's sum ${final.output_text} is not its deltas' ${text}`);
  return { text };
}

async function background_polled(baseURL, model) {
  const openai = client(baseURL);
  let response = await openai.responses.create(ask(model, { background: true }));
  const statuses = [response.status];
  while (WAITING.includes(response.status)) {
    await pause(200);
    response = await openai.responses.retrieve(response.id);
    if (response.status !== statuses.at(-1)) statuses.push(response.status);
  }
  return { text: response.output_text, details: { statuses, usage: response.usage.total_tokens } };
}

async function background_resumed(baseURL, model) {
  const openai = client(baseURL);
  const numbers = [];
  let deltas = "";
  let final = null;
  let cuts = 0;
  let id;
  for await (const event of await openai.responses.create(ask(model, { background: true, stream: true }))) {
    numbers.push(event.sequence_number);
    id = event.response.id;
    break;
  }
  while (final === null) {
    cuts += 1;
    let read = 0;
    for await (const event of await openai.responses.retrieve(id, { stream: true, starting_after: numbers.at(-1) })) {
      numbers.push(event.sequence_number);
      if (event.type === "response.output_text.delta") deltas += event.delta;
      if (LAST.includes(event.type)) final = event.response;
      if (++read === 4) break;
    }
  }
  return { text: deltas, details: { numbers, deltas, cuts } };
}

async function cancelled(baseURL, model) {
  const openai = client(baseURL);
  const { id } = await openai.responses.create(ask(model, { background: true }));
  const status = [(await openai.responses.cancel(id)).status, (await openai.responses.cancel(id)).status];
  await openai.responses.delete(id);
  try {
    await openai.responses.retrieve(id);
  } catch (error) {
    if (error instanceof OpenAI.NotFoundError) return { text: "", details: { status, then: error.code } };
    throw error;
  }
  return { text: "", details: { then: "it is still there" } };
}

async function done(openai, id, seen = () => {}) {
  let batch = await openai.batches.retrieve(id);
  while (GOING_ON.includes(batch.status)) {
    await pause(200);
    batch = await openai.batches.retrieve(id);
    seen(batch);
  }
  return batch;
}

async function all(pages) {
  const ids = [];
  for await (const each of pages) ids.push(each.id);
  return ids;
}

async function batch(baseURL, model) {
  const openai = client(baseURL);
  const body = { model, messages: [{ role: "user", content: QUESTION }], temperature: 0, max_tokens: 32 };
  const lines = Array.from({ length: LINES }, (_, n) =>
    JSON.stringify({ custom_id: `request-${n}`, method: "POST", url: "/v1/chat/completions", body }),
  );
  const upload = await toFile(Buffer.from(lines.join("\n")), "batch.jsonl");
  const file = await openai.files.create({ file: upload, purpose: "batch" });
  const made = await openai.batches.create({
    input_file_id: file.id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
    metadata: { description: "many lines" },
  });
  const counts = [];
  const ended = await done(openai, made.id, (now) => counts.push(now.request_counts.completed));
  const text = await (await openai.files.content(ended.output_file_id)).text();
  const results = text.trim().split("\n").map((line) => JSON.parse(line));
  const texts = new Set(results.map((result) => result.response.body.choices[0].message.content));
  const files = await all(openai.files.list());
  const details = {
    status: ended.status,
    counts: ended.request_counts,
    rises: counts.every((n, i) => i === 0 || n >= counts[i - 1]),
    ids: results.map((result) => result.custom_id),
    texts: [...texts].sort(),
    listed: (await all(openai.batches.list())).includes(made.id),
    files: files.includes(file.id) && files.includes(ended.output_file_id),
    deleted: (await openai.files.delete(file.id)).deleted,
  };
  return { text: [...texts].sort()[0], details };
}

async function batch_refused(baseURL, model) {
  const openai = client(baseURL);
  const line = JSON.stringify({ custom_id: "same", method: "POST", url: "/v1/completions", body: { model, prompt: PROMPT } });
  const file = await openai.files.create({ file: await toFile(Buffer.from(`${line}\n${line}`), "b.jsonl"), purpose: "batch" });
  const made = await openai.batches.create({ input_file_id: file.id, endpoint: "/v1/completions", completion_window: "24h" });
  const ended = await done(openai, made.id);
  return { text: "", details: { status: ended.status, errors: ended.errors.data.map((e) => [e.line, e.code]) } };
}

await main("openai", { plain, stream, background_polled, background_resumed, cancelled, batch, batch_refused });
