"""What a pod's environment says beside the configuration file, which is the same in every pod."""

from __future__ import annotations

import os

from pydantic import ValidationError

from rewarm.config import Config
from rewarm.errors import ConfigInvalid
from rewarm.knative import names


def at_listen(config: Config) -> Config:
    """``gateway.listen`` from the environment, under the same rules. Raise ConfigInvalid."""
    listen = os.environ.get(names.ENV_LISTEN)
    if not listen:
        return config
    try:
        gateway = type(config.gateway).model_validate({**config.gateway.model_dump(), "listen": listen})
        fields = {name: getattr(config, name) for name in type(config).model_fields}
        return type(config).model_validate({**fields, "gateway": gateway})
    except ValidationError as error:
        raise ConfigInvalid(f"{names.ENV_LISTEN}={listen}: {error.errors()[0]['msg']}") from None


def at_place(config: Config, place: str, redis_url: str, address: str) -> tuple[Config, str]:
    """The configuration of the worker of ``place``, with the one model that it serves. Raise ConfigInvalid."""
    found = names.by_name(names.places({m: entry.max_replicas for m, entry in config.local_models.items()}))
    if place not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigInvalid(f"{names.ENV_PLACE}={place}: the configuration has no such place, only {known}")
    model = found[place].model
    changes = {
        "models": {model: config.models[model]},
        "redis": config.redis.model_copy(update={"url": redis_url}),
        "worker": config.worker.model_copy(update={"name": place, "advertise": config.worker.advertise or address}),
    }
    return config.model_copy(update=changes), model


def address() -> str | None:
    """The pod's, where the manifest says it."""
    return os.environ.get(names.ENV_ADDRESS) or None


def place_port() -> int:
    """Knative says it; elsewhere it is always the same one."""
    return int(os.environ.get("PORT") or names.PLACE_PORT)


def backend_name() -> str:
    """Which backend the controller drives. Raise ConfigInvalid."""
    name = os.environ.get(names.ENV_BACKEND) or names.BACKENDS[0]
    if name not in names.BACKENDS:
        raise ConfigInvalid(f"{names.ENV_BACKEND}={name}: write one of {', '.join(names.BACKENDS)}")
    return name
