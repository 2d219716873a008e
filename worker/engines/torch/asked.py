"""What a body asks of the runner, once its prompts are tokens: how long each answer may be, and how it is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rewarm.errors import ContextLengthExceeded
from worker.engines.torch.model import Skeleton
from worker.engines.torch.prompts import Prompts
from worker.engines.torch.request import (
    MOST_PROMPTS,
    ChatBody,
    CompletionBody,
    messages,
    prompts,
    stops,
)
from worker.engines.torch.sampling import Sampling

_COMPLETION_TOKENS = 16
"""OpenAI's default for completions."""


@dataclass(frozen=True, slots=True)
class Asked:
    """``prompts``: tokens, and the most tokens of the answer to them."""

    prompts: Sequence[tuple[Sequence[int], int]]
    sampling: Sampling
    stops: tuple[str, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool
    return_token_ids: bool

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt, _ in self.prompts)


async def of_chat(body: ChatBody, tokens: Prompts, model: Skeleton) -> Asked:
    """Raise a BadRequest."""
    prompt = await tokens.of_chat(messages(body.messages))
    return _asked(body, [prompt], body.max_completion_tokens or body.max_tokens, model)


async def of_completion(body: CompletionBody, tokens: Prompts, model: Skeleton) -> Asked:
    """Raise a BadRequest."""
    found = await tokens.of_texts(prompts(body.prompt, "prompt", MOST_PROMPTS))
    return _asked(body, found, body.max_tokens or _COMPLETION_TOKENS, model)


def _asked(body: ChatBody | CompletionBody, found: Sequence[Sequence[int]], most: int | None, model: Skeleton) -> Asked:
    return Asked(
        [(prompt, _most(len(prompt), most, model.context, body)) for prompt in found],
        sampling(body, model),
        stops(body.stop),
        body.ignore_eos,
        bool(body.stream),
        body.stream_options is not None and body.stream_options.include_usage,
        body.return_token_ids,
    )


def _most(prompt: int, asked: int | None, context: int, body: ChatBody | CompletionBody) -> int:
    left = context - prompt
    if asked is None:
        return left
    explicit = body.max_tokens is not None or isinstance(body, ChatBody)
    if asked > left and explicit:
        raise ContextLengthExceeded(
            f"the prompt's {prompt} tokens and an answer of {asked} are more than the model's context of {context}",
            param="max_tokens",
        )
    return min(asked, left)


def sampling(body: ChatBody | CompletionBody, model: Skeleton) -> Sampling:
    """What the client says, else what the checkpoint's generation_config.json does, else OpenAI's defaults."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    chosen = {**model.defaults, **given}
    chosen["top_k"] = max(0, chosen.get("top_k", 0))  # -1 is vLLM's word for all
    return Sampling(**chosen, seed=body.seed)
