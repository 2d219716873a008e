"""Other proxies before the same engine: nginx with one worker, litellm's proxy. Each may be absent."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import yaml

from benchmarks._processes import ROOT, Program, free_port, running, wait_for_port

LITELLM = ROOT / ".venv-litellm" / "bin" / "litellm"

_NGINX = """daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log crit;
events {{ worker_connections 8192; }}
http {{
  access_log off; tcp_nodelay on; keepalive_requests 100000000;
  client_max_body_size 32m; client_body_buffer_size 1m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
{servers}
}}
"""
_SERVER = """  upstream engine{index} {{ server {upstream}; keepalive 256; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{port} backlog=4096; location / {{
    proxy_pass http://engine{index}; proxy_http_version 1.1; proxy_set_header Connection "";
    proxy_buffering off; proxy_read_timeout 600s; }} }}
"""


@contextlib.contextmanager
def nginx(folder: Path, upstreams: list[str]) -> Iterator[tuple[Program, list[int]]]:
    """One process; one port for each upstream (``127.0.0.1:9100`` or ``unix:/path``). Streams are not buffered."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = [free_port() for _ in upstreams]
    servers = "".join(
        _SERVER.format(index=index, upstream=upstream, port=port)
        for index, (upstream, port) in enumerate(zip(upstreams, ports, strict=True))
    )
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, servers=servers))
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    with running("nginx", [binary, "-p", str(folder), "-c", str(config)], folder) as program:
        for port in ports:
            wait_for_port(program, port)
        yield program, ports


def nginx_installed() -> bool:
    return shutil.which("nginx") is not None or Path("/usr/sbin/nginx").exists()


@contextlib.contextmanager
def litellm(folder: Path, engine_port: int, key: str) -> Iterator[tuple[Program, int]]:
    """litellm's proxy with one worker, from ``benchmarks/setup.sh``'s environment."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    upstream = {"model": "openai/fast", "api_base": f"http://127.0.0.1:{engine_port}/v1", "api_key": "none"}
    config = folder / "litellm.yaml"
    config.write_text(yaml.safe_dump({"model_list": [{"model_name": "fast", "litellm_params": upstream}]}))
    argv = [str(LITELLM), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MASTER_KEY": key}
    with running("litellm", argv, folder, env=env) as program:
        wait_for_port(program, port, within_s=120)
        yield program, port
