"""`rpsp pack`, `rpsp push`, `rpsp pull` and `rpsp serve`."""

from __future__ import annotations

import os
import secrets
import shlex
from pathlib import Path

from rpsp.cli.printing import print_json, speaker
from rpsp.experiments import config_sharing as configs
from rpsp.experiments.plugins import import_plugin
from rpsp.experiments.words import number


def pack(config: configs.PackConfig) -> None:
    """Pack the agent of a run into one file."""
    from rpsp.experiments.sharing import packing  # loads jax: start-up time of --help

    import_plugin(config.plugin)
    say = speaker(config.quiet)
    file = None if config.file is None else Path(config.file)
    results = packing.pack(Path(config.directory), file, config.checkpoint, config.episodes, config.licence, say)
    if (found := results.get("evaluation")) is not None:
        low, high = number(found["low"]), number(found["high"])
        say(f"return {number(found['mean'])}, 95 % interval {low} to {high}, {found['episodes']} episodes")
    say(f"wrote {results['file']} ({results['bytes']:,} bytes); read it with rpsp.load({results['file']!r})")
    print_json(config.json, results)


def push(config: configs.PushConfig) -> None:
    """Upload a packed agent to the hub."""
    from rpsp.experiments.sharing import hub  # loads jax: start-up time of --help

    say = speaker(config.quiet)
    results = hub.push(Path(config.file), config.repository, private=config.private, say=say)
    say(f"uploaded to {results['url']}")
    print_json(config.json, results)


def pull(config: configs.PullConfig) -> None:
    """Download a packed agent from the hub."""
    from rpsp.experiments.sharing import hub  # loads jax: start-up time of --help

    say = speaker(config.quiet)
    results = hub.pull(config.repository, None if config.file is None else Path(config.file), config.revision, say)
    say(f"wrote {results['file']}; try it: {shlex.join(['rpsp', 'eval', results['file']])}")
    print_json(config.json, results)


def serve(config: configs.ServeConfig) -> None:
    """Serve an agent until Ctrl-C."""
    import asyncio  # start-up time of --help

    from rpsp.experiments.agents import load  # loads jax: start-up time of --help
    from rpsp.experiments.compilation import compilation_cached
    from rpsp.experiments.serving.service import Limits, Service, is_loopback
    from rpsp.experiments.serving.service import serve as serving

    import_plugin(config.plugin)
    say = speaker(config.quiet)
    limits = Limits(config.sessions, config.idle, config.rate)
    checkpoint = int(config.checkpoint) if config.checkpoint.isdecimal() else config.checkpoint
    given, token = os.environ.get("RPSP_TOKEN") or None, None
    if given is not None or not is_loopback(config.host):
        token = given or secrets.token_urlsafe(24)
    made = {} if token is None or given is not None else {"token": token}
    with compilation_cached():
        agent = load(config.agent, checkpoint, say=say)
        service = Service(agent, {"agent": Path(config.agent).name}, token, limits)

        def ready(port: int) -> None:
            address = f"http://{config.host}:{port}"
            say(f"serving {config.agent} at {address} (WebSocket: ws://{config.host}:{port}/ws); Ctrl-C ends it")
            if made:
                say(f"requests need the header Authorization: Bearer {token}")
            print_json(config.json, {"address": address, "port": port, **made})

        asyncio.run(serving(service, config.host, config.port, ready))
    say("stopped")
