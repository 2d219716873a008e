// LangChain for JavaScript: ChatOpenAI, invoke and stream.
import { ChatOpenAI } from "@langchain/openai";
import { QUESTION, main } from "./_suite.mjs";

const chat = (baseURL, model) =>
  new ChatOpenAI({ model, apiKey: "none", configuration: { baseURL }, temperature: 0, maxTokens: 32 });

async function plain(baseURL, model) {
  return { text: (await chat(baseURL, model).invoke(QUESTION)).content };
}

async function stream(baseURL, model) {
  let whole;
  for await (const chunk of await chat(baseURL, model).stream(QUESTION)) whole = whole ? whole.concat(chunk) : chunk;
  return { text: whole.content };
}

await main("@langchain/openai", { plain, stream });
