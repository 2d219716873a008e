"""``rewarm check FILE``: what is wrong with a configuration (errors), and what will not work here (warnings)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import click

from rewarm.cli.options import json_option
from rewarm.config import (
    AdapterModel,
    AnyModel,
    CommandModel,
    Config,
    RemoteModel,
    TorchModel,
    VllmModel,
    is_loopback,
    line_of,
    load,
)
from rewarm.errors import ConfigInvalid
from rewarm.hub import is_hub, parse_reference


@dataclass(frozen=True, slots=True)
class Finding:
    """``line`` is 0 where the file has no line to blame."""

    level: str  # error | warning
    field: str
    message: str
    line: int = 0


@click.command(short_help="Explain a configuration's errors, and what will not work here.")
@click.argument("config_path", metavar="FILE", type=click.Path(path_type=Path))
@json_option
def check(config_path: Path, as_json: bool) -> None:
    """Explain every error of a configuration by line and field, and warn of what will not work on this machine."""
    try:
        config = load(config_path)
    except ConfigInvalid as error:
        findings = _errors(error.message)
        _show(config_path, findings, as_json, models=0)
        raise SystemExit(error.exit_code) from None
    found = [replace(f, line=line_of(config_path, f.field)) for f in warnings(config)]
    found.sort(key=lambda f: f.line)
    _show(config_path, found, as_json, models=len(config.models))
    if any(f.level == "error" for f in found):
        raise SystemExit(ConfigInvalid.exit_code)


def warnings(config: Config) -> list[Finding]:
    return [*_models(config), *_port(config), *_memory(config), *_safety(config)]


def _errors(message: str) -> list[Finding]:
    """``FILE:LINE: field: what is wrong``, one a line, as ``rewarm.config.load`` words them."""
    out = []
    for text in message.splitlines():
        head, _, rest = text.partition(": ")
        line = head.rpartition(":")[2]
        field, separator, what = rest.partition(": ")
        number = int(line) if line.isdigit() else 0
        out.append(Finding("error", field, what, number) if separator else Finding("error", "file", rest, number))
    return out


def _models(config: Config) -> list[Finding]:
    out: list[Finding] = []
    if not config.models:
        out.append(Finding("warning", "models", "no model is configured: every request will be a 404"))
    for name, model in config.models.items():
        at = f"models.{name}"
        if isinstance(model, VllmModel | TorchModel):
            out += _checkpoint(f"{at}.source", model.source)
        elif isinstance(model, AdapterModel):
            out += _adapter(f"{at}.source", model.source, config.models[model.adapter_of])
        elif isinstance(model, RemoteModel):
            out += _remote(at, model)
        elif isinstance(model, CommandModel):
            if shutil.which(model.cmd[0]) is None:
                out.append(Finding("warning", f"{at}.cmd", f"{model.cmd[0]!r} is no program on this machine's PATH"))
            if is_hub(model.source) and model.source is not None:
                out += _hub(f"{at}.source", model.source)
            elif model.source is not None and not model.source.exists():
                out.append(Finding("warning", f"{at}.source", f"{model.source} does not exist on this machine"))
    return out


def _remote(at: str, model: RemoteModel) -> list[Finding]:
    out = []
    if model.key_env is None:
        text = "no `key_env`: requests are sent without a key"
        out.append(Finding("warning", f"{at}.url", text))
    elif not os.environ.get(model.key_env):
        text = f"the environment has no {model.key_env}: the upstream will refuse every request"
        out.append(Finding("warning", f"{at}.key_env", text))
    if model.key_env is not None and model.url.startswith("http://"):
        host = urlsplit(model.url).hostname or ""
        if not is_loopback(host):
            out.append(Finding("warning", f"{at}.url", "the key goes over the network in clear text: write https://"))
    if model.ca_file is not None:
        try:
            ssl.create_default_context(cafile=model.ca_file)
        except (OSError, ssl.SSLError) as error:
            out.append(Finding("warning", f"{at}.ca_file", f"{model.ca_file}: {error.strerror or error}"))
    return out


def _hub(field: str, source: Path) -> list[Finding]:
    from snapshots import HubCache, HubSettings

    reference, cache = parse_reference(source), HubCache(HubSettings.read().cache)
    if cache.find(reference) is not None:
        return []
    text = f"{reference} is not in {cache.root}: the first load downloads it, or `rewarm pull {reference}` does"
    return [Finding("warning", field, text)]


def _checkpoint(field: str, source: Path) -> list[Finding]:
    if is_hub(source):
        return _hub(field, source)
    if not source.is_dir():
        return [Finding("warning", field, f"{source} is no folder on this machine")]
    out = []
    if not (source / "config.json").is_file():
        out.append(Finding("warning", field, f"{source} has no config.json"))
    weights = [p for p in source.glob("*.safetensors") if p.is_file()]
    if not weights:
        out.append(Finding("warning", field, f"{source} has no *.safetensors"))
    out += [Finding("warning", field, f"{p.name} is empty") for p in weights if p.stat().st_size == 0]
    return out


def _adapter(field: str, source: Path, base: AnyModel) -> list[Finding]:
    """An error where it is here and cannot be served: it fails alone, so nothing else would say so before it is asked
    for. Where its base is not here, only what the adapter says of itself is looked at."""
    from snapshots import Checkpoint, CheckpointError, inspect
    from worker import check_adapter

    if not source.is_dir():
        return [Finding("warning", field, f"{source} is no folder on this machine")]
    checkpoint: Checkpoint | None = None
    if isinstance(base, VllmModel) and base.source.is_dir():
        with contextlib.suppress(CheckpointError):  # told of the base
            checkpoint = inspect(base.source)
    try:
        check_adapter(source, checkpoint)
    except CheckpointError as error:
        return [Finding("error", field, str(error))]
    return []


def _port(config: Config) -> list[Finding]:
    problem = listen_problem(config.gateway.host, config.gateway.port)
    return [Finding("warning", "gateway.listen", problem)] if problem else []


def listen_problem(host: str, port: int) -> str:
    """Why the address cannot be listened on now; empty when it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)  # only listening finds out about a listener that reuses addresses as well
        except OSError as error:
            return f"{host}:{port} cannot be listened on: {os.strerror(error.errno or 0)}"
    return ""


def _memory(config: Config) -> list[Finding]:
    sized = any(
        model.memory or (model.source is not None and model.source.exists()) for model in config.local_models.values()
    )
    if config.worker.memory is None and config.worker.devices is None and not sized:
        return []
    from worker import problems_here

    return [Finding("warning", found.field, f"{found.message} [{found.code}]") for found in problems_here(config)]


def _safety(config: Config) -> list[Finding]:
    out = []
    if config.worker.advertise and not os.environ.get(config.secret_env):
        text = f"the environment has no {config.secret_env}: a worker with `advertise` needs the fleet's secret"
        out.append(Finding("warning", "worker.advertise", text))
    return out


def _show(path: Path, findings: list[Finding], as_json: bool, *, models: int) -> None:
    ok = not any(f.level == "error" for f in findings)
    if as_json:
        listed = [asdict(f) for f in findings]
        click.echo(json.dumps({"file": str(path), "ok": ok, "models": models, "findings": listed}, indent=2))
        return
    for finding in findings:
        where = f"{path}:{finding.line}" if finding.line else str(path)
        colour = "red" if finding.level == "error" else "yellow"
        click.echo(f"{where}: {click.style(finding.level, fg=colour)}: {finding.field}: {finding.message}")
    if ok:
        said = _count(len(findings), "warning") if findings else "nothing to complain about"
        click.echo(f"{path}: {_count(models, 'model')}, {said}")
    else:
        click.echo(f"{path}: {_count(len(findings), 'error')}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
