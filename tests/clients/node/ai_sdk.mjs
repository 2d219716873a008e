// The AI SDK with its OpenAI-compatible provider: generateText, streamText (which reports errors as parts, not exceptions).
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import { QUESTION, main } from "./_suite.mjs";

const chat = (baseURL, model) => createOpenAICompatible({ name: "rewarm", baseURL })(model);
const call = { prompt: QUESTION, temperature: 0, maxOutputTokens: 32 };

async function plain(baseURL, model) {
  const { text } = await generateText({ model: chat(baseURL, model), ...call });
  return { text };
}

async function stream(baseURL, model) {
  const result = streamText({ model: chat(baseURL, model), ...call, onError: () => {} });
  let text = "";
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "reasoning-delta") throw new Error(`reasoning out of nowhere: ${part.text}`);
    if (part.type === "text-delta") text += part.text;
  }
  return { text, details: { finish_reason: await result.finishReason } };
}

async function text_stream(baseURL, model) {
  let text = "";
  for await (const delta of streamText({ model: chat(baseURL, model), ...call }).textStream) text += delta;
  return { text };
}

await main("ai", { plain, stream, text_stream });
