// openai-node: plain, stream, the stream helper, text completions.
import OpenAI from "openai";
import { LIMITS, MESSAGES, main } from "./_suite.mjs";

const PROMPT = "The capital of France is";
const client = (baseURL) => new OpenAI({ baseURL, apiKey: "none" });

async function plain(baseURL, model) {
  const answer = await client(baseURL).chat.completions.create({ model, messages: MESSAGES, ...LIMITS });
  const { content, role } = answer.choices[0].message;
  return { text: content, role };
}

async function stream(baseURL, model) {
  const chunks = await client(baseURL).chat.completions.create({ model, messages: MESSAGES, stream: true, ...LIMITS });
  let text = "";
  let role = "";
  for await (const chunk of chunks) {
    text += chunk.choices[0].delta.content ?? "";
    role += chunk.choices[0].delta.role ?? "";
  }
  return { text, role };
}

async function stream_helper(baseURL, model) {
  const helper = client(baseURL).chat.completions.stream({ model, messages: MESSAGES, ...LIMITS });
  let text = "";
  helper.on("content", (delta) => (text += delta));
  const { content, role } = (await helper.finalChatCompletion()).choices[0].message;
  if (content !== text) throw new Error(`the helper's sum ${content} is not its deltas' ${text}`);
  return { text, role };
}

async function text_plain(baseURL, model) {
  const answer = await client(baseURL).completions.create({ model, prompt: PROMPT, ...LIMITS });
  return { text: answer.choices[0].text, prompt: PROMPT };
}

async function text_stream(baseURL, model) {
  let text = "";
  const chunks = await client(baseURL).completions.create({ model, prompt: PROMPT, stream: true, ...LIMITS });
  for await (const chunk of chunks) text += chunk.choices[0].text;
  return { text, prompt: PROMPT };
}

await main("openai", { plain, stream, stream_helper, text_plain, text_stream });
