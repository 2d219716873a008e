"""Prompts as tokens, on one thread of their own: a tokenizer is not to be used by two, and long texts take a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rewarm.errors import ContextLengthExceeded, InvalidRequest, NotSupported
from worker.engines.torch.model import Skeleton
from worker.engines.torch.request import Prompt

_T = TypeVar("_T")


class Prompts:
    def __init__(self, model: Skeleton) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, "tokenizer")

    async def of_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Raise NotSupported, InvalidRequest, ContextLengthExceeded."""
        return await self._run(lambda: self._of_chat(messages))

    async def of_texts(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Texts and lists of tokens. Raise InvalidRequest, ContextLengthExceeded."""
        return await self._run(lambda: [self._of_text(prompt) for prompt in prompts])

    def _of_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        tokenizer = self._model.tokenizer
        if not tokenizer.chat_template:
            raise NotSupported("the model has no chat template: ask for /v1/completions")
        try:
            text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template raises what it likes
            words = f"the model's chat template refuses the messages: {error}"
            raise InvalidRequest(words, param="messages") from error
        return self._checked(tokenizer(text, add_special_tokens=False)["input_ids"])

    def _of_text(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self._checked(self._model.tokenizer(prompt)["input_ids"])
        highest = self._model.module.get_input_embeddings().num_embeddings - 1
        if not all(0 <= token <= highest for token in prompt):
            raise InvalidRequest(f"a token is not between 0 and {highest}")
        return self._checked(prompt)

    def _checked(self, tokens: list[int]) -> list[int]:
        if not tokens:
            raise InvalidRequest("the prompt is empty")
        context = self._model.context
        least = 1 if self._model.generates else 0  # room for an answer
        if len(tokens) + least > context:
            raise ContextLengthExceeded(f"the prompt has {len(tokens)} tokens, the context of the model {context}")
        return tokens

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
