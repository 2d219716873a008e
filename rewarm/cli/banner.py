"""What `serve` says when it has started: where it listens, what it serves, and a request to try."""

from __future__ import annotations

import json

from rich.console import Console
from rich.markup import escape

from rewarm import __version__
from rewarm.config import AdapterModel, AnyModel, Config, RemoteModel
from rewarm.paths import Paths


def starting(console: Console) -> None:
    console.print(f"[bold]rewarm {__version__}[/]  starting …", highlight=False)


def show(console: Console, config: Config, paths: Paths, redis_url: str, took_s: float) -> None:
    """The gateway answers: what is shown here works."""
    url = base_url(config)
    title = f"[bold]rewarm {__version__}[/]  {escape(url)}  fleet [bold]{escape(config.fleet)}[/]"
    console.print(f"{title}  ready in {took_s:.1f} s", highlight=False, soft_wrap=True)
    for name, model in config.models.items():
        aliases = f" (also {', '.join(model.aliases)})" if model.aliases else ""
        text = f"  {escape(name)}{escape(aliases)}: {escape(_kind(model))}"
        console.print(text, highlight=False, soft_wrap=True)
    console.print(f"  logs   {escape(str(paths.logs))}", highlight=False, soft_wrap=True)
    console.print(f"  redis  {escape(_private(redis_url))}\n", highlight=False, soft_wrap=True)
    if config.models:
        console.print("Try it; the model wakes on the first request:\n", highlight=False)
        console.print(example(config), highlight=False, markup=False, soft_wrap=True)
        console.print()


def _kind(model: AnyModel) -> str:
    if isinstance(model, AdapterModel):
        return f"adapter of {model.adapter_of}"
    room = model.url if isinstance(model, RemoteModel) else f"{model.slots} slots"
    return f"{model.engine}, {room}"


def base_url(config: Config) -> str:
    """Where a client on this machine reaches the gateway."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.gateway.host, config.gateway.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{config.gateway.port}"


def example(config: Config) -> str:
    model = next(iter(config.models))
    question = {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
    body = json.dumps({"model": model, "messages": [question], "stream": True, "temperature": 0})
    key = " \\\n    -H 'Authorization: Bearer YOUR_KEY'" if config.keys else ""
    url = f"{base_url(config)}/v1/chat/completions"
    return f"  curl -N {url} -H 'Content-Type: application/json'{key} \\\n    -d '{body}'"


def _private(url: str) -> str:
    """Without a password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
