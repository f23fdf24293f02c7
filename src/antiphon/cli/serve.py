"""`antiphon serve` and `antiphon replay`."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

import msgspec
import typer
from rich.markup import escape

from antiphon.assembly.deployment import Deployment, DeploymentLimits, StageSizes
from antiphon.assembly.deployment_file import deployment_names
from antiphon.assembly.preset import read_preset, readers_of
from antiphon.checkpoint.parts import check_whole
from antiphon.checkpoint.side_files import read_json
from antiphon.checkpoint.source import check_source
from antiphon.cli.groups import ENGINE, EngineFlags, EngineSizes, engine_options, grouped
from antiphon.cli.options import PRESETS, RecordPreset, key_option
from antiphon.cli.shared import (
    LoadingBar,
    console,
    fail,
    given_options,
    log_to_stderr,
    split,
    warn_of_cut,
)
from antiphon.core.config import EngineOptions
from antiphon.core.counted import counted
from antiphon.core.errors import AntiphonError, ConfigError
from antiphon.core.model_source import PARTS, name_of, parts_in, source_of
from antiphon.latency.finding import find_costs
from antiphon.wire.readers import ReaderRates

MAX_PORT = 65535
SERVED = DeploymentLimits()
"""As they are where nothing is said."""


@dataclass(frozen=True)
class AccessOptions:
    """Where it listens, and who may come."""

    panel: ClassVar[str] = "Where it listens, and to whom"
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=MAX_PORT, help="Port to listen on; 0 picks a free one.")] = (
        8000
    )
    media_hosts: Annotated[
        str,
        typer.Option(help="Comma-separated hosts (host or host:port) to fetch media URLs from; none: off."),
    ] = ""
    origins: Annotated[
        str, typer.Option(help="Comma-separated web origins that may connect beside the server's own.")
    ] = ""
    api_keys: Annotated[
        str, typer.Option(envvar="ANTIPHON_API_KEYS", help="Comma-separated keys; none means open.")
    ] = ""
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM certificate: serve https and wss.")] = None
    tls_key: Annotated[Path | None, typer.Option(help="PEM key of the certificate.")] = None


@dataclass(frozen=True)
class ServedEngine(EngineFlags):
    """Fields of EngineOptions."""

    stages_apart: Annotated[
        bool, typer.Option("--stages-apart", help="Every stage in a process of its own.")
    ] = ENGINE.stages_apart
    layer_groups: Annotated[int, key_option("layer_groups")] = ENGINE.layer_groups


@dataclass(frozen=True)
class ServedSizes(EngineSizes):
    """Fields of EngineOptions."""

    host_kv_tokens: Annotated[
        int,
        typer.Option(help="KV of idle sessions that each stage may keep in host memory, in tokens; 0: none."),
    ] = ENGINE.host_kv_tokens


@dataclass(frozen=True)
class DecisionOptions:
    """Fields of EngineOptions."""

    panel: ClassVar[str] = "Decisions and records"
    preset: Annotated[str, typer.Option(help=f"Which policies decide: {PRESETS}.")] = ENGINE.preset
    profile: Annotated[
        str,
        typer.Option(
            help="What steps and copies take, for policies that ask: a datasheet's hardware, or a file that "
            "`antiphon profile` wrote; by default what they report.",
        ),
    ] = ENGINE.profile
    step_s: Annotated[float | None, key_option("step_s")] = ENGINE.step_s


@dataclass(frozen=True)
class LimitOptions:
    """Fields of ServerSettings."""

    panel: ClassVar[str] = EngineSizes.panel
    max_sessions: Annotated[int, key_option("limits.max_sessions")] = SERVED.max_sessions
    max_open_responses: Annotated[int, key_option("limits.max_open_responses")] = SERVED.max_open_responses
    max_best_effort_responses: Annotated[int, key_option("limits.max_best_effort_responses")] = (
        SERVED.max_best_effort_responses
    )
    min_lead_s: Annotated[float, key_option("limits.min_lead_s")] = SERVED.min_lead_s


@dataclass(frozen=True)
class SessionLimitOptions:
    """Fields of Limits."""

    panel: ClassVar[str] = EngineSizes.panel
    max_audio_s: Annotated[float, key_option("limits.session.max_audio_s")] = SERVED.session.max_audio_s
    max_items: Annotated[int, key_option("limits.session.max_items")] = SERVED.session.max_items


@grouped
def serve(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="Checkpoint directory, a GGUF, a hub id such as org/name, or the parts of a cascade "
            "(transcriber=…,thinker=…,voice=…); by default --config's."
        ),
    ] = "",
    config: Annotated[
        str,
        typer.Option(
            help=f"A deployment: {', '.join(deployment_names())}, or a file. Options given beside it win."
        ),
    ] = "",
    access: AccessOptions = AccessOptions(),
    name: Annotated[
        str,
        typer.Option(
            rich_help_panel=EngineFlags.panel, help="Name clients ask for; the checkpoint's name by default."
        ),
    ] = "",
    engine: ServedEngine = ServedEngine(),
    sizes: ServedSizes = ServedSizes(),
    limits: LimitOptions = LimitOptions(),
    session: SessionLimitOptions = SessionLimitOptions(),
    decisions: DecisionOptions = DecisionOptions(),
    record: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=DecisionOptions.panel,
            help="Write every fact and decision to this file, which must not exist.",
        ),
    ] = None,
) -> None:
    """Serve a model over OpenAI's Realtime and HTTP protocols, and a console page where it says."""
    from antiphon.runtime.messages import Start
    from antiphon.runtime.record import check_new
    from antiphon.server.launch import ServeOptions, run
    from antiphon.server.settings import ServerSettings

    def given(*groups: object) -> dict[str, Any]:
        """Fields of the groups that were said; the others are as a deployment, or the default, has them."""
        said = given_options(context)
        return {name: value for group in groups for name, value in vars(group).items() if name in said}

    log_to_stderr()
    try:
        options, settings = EngineOptions(), ServerSettings()
        if config:  # torch comes with it, which the server itself does not need
            from antiphon.cli.deployments import resolved

            deployed, model = resolved(config, model, console.print)
            options = deployed.sound
            settings = replace(settings, limits=deployed.limits, **server_limits(deployed.deployment))
        else:
            model = Deployment().source(model)
        options = overridden(options, engine_options(given(engine, sizes, decisions)))
        settings = replace(
            settings,
            limits=replace(settings.limits, **given(session)),
            # what is wrong there is said before anything starts
            readers=readers_of(read_preset(options.preset), settings.readers),
            origins=split(access.origins),
            api_keys=split(access.api_keys),
            media_hosts=split(access.media_hosts),
            **given(limits),
        )
        if options.profile:
            find_costs(options.profile)
        if not model:
            raise ConfigError(
                "no model: name a checkpoint directory, a hub id, or the parts of a cascade "
                f"({source_of(dict.fromkeys(PARTS, '…'))}), or a --config that does"
            )
        parts = parts_in(model)
        for one in [parts[part] for part in PARTS] if parts else (model,):
            check_source(one)
        folder = Path(model).expanduser()
        if (configured := folder / "config.json").is_file():
            check_whole(folder, read_json(configured, "it is not a model checkpoint"))
        check_origins(settings.origins)
        check_media_hosts(settings.media_hosts)
        if record is not None:
            check_new(record)
        if is_open(access.host) and not settings.api_keys:
            console.print(
                f"[bold yellow]warning:[/] --host {escape(access.host)} without --api-keys: whoever reaches "
                "this machine may talk to the model and watch all sessions",
                soft_wrap=True,
            )
        start = Start(model, name or name_of(model), options, str(record.absolute()) if record else None)
        where = ServeOptions(access.host, access.port, access.tls_certificate, access.tls_key)
        with LoadingBar() as progress:
            asyncio.run(run(start, settings, where, progress.show))
    except AntiphonError as error:
        fail(error)


def overridden(options: EngineOptions, given: Mapping[str, Any]) -> EngineOptions:
    """The options with others in their place: a size is every stage's then, and a device everyone's. Raises
    ConfigError."""
    others: dict[str, Any] = dict(given)
    sizes = dict.fromkeys(name for name in given if name in StageSizes.model_fields)
    if sizes:
        stages = options.stages.items()
        others["stages"] = {name: msgspec.structs.replace(stage, **sizes) for name, stage in stages}
    if "device" in given:
        others["places"] = {}
    return msgspec.structs.replace(options, **others)


def server_limits(deployment: Deployment) -> dict[str, Any]:
    """Fields of ServerSettings that a deployment says."""
    limits = deployment.limits
    return {
        "max_sessions": limits.max_sessions,
        "max_open_responses": limits.max_open_responses,
        "max_best_effort_responses": limits.max_best_effort_responses,
        "min_lead_s": limits.min_lead_s,
        "readers": ReaderRates(**deployment.readers.model_dump()),
        "prefix_cache": deployment.prefix_cache == "on",
    }


def is_open(host: str) -> bool:
    """Whether others than this machine may come: its address is none of a loopback."""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def check_origins(origins: tuple[str, ...]) -> None:
    """Raises ConfigError for what no browser says where a page is from."""
    for origin in origins:
        try:
            parts = urlsplit(origin)
        except ValueError:
            parts = None
        is_web = parts is not None and parts.scheme in ("http", "https") and bool(parts.netloc)
        if not is_web or origin.count("/") > 2:
            raise ConfigError(
                f"--origins: {origin!r} is not an origin such as https://host or https://host:8443"
            )


def check_media_hosts(hosts: tuple[str, ...]) -> None:
    """Raises ConfigError for what is no host of a URL: a URL itself would match none."""
    for host in hosts:
        try:
            parts = urlsplit(f"//{host}")
            is_host = parts.netloc == host and bool(parts.hostname) and "@" not in host and parts.port != 0
        except ValueError:
            is_host = False
        if not is_host:
            raise ConfigError(
                f"--media-hosts: {host!r} is not a host such as media.example or media.example:8443"
            )


def replay(
    record: Annotated[Path, typer.Argument(help="File written by `antiphon serve --record`.")],
    most: Annotated[int, typer.Option(help="Differences to print.")] = 20,
    preset: RecordPreset = "",
) -> None:
    """Decide again on recorded facts and show where the decisions differ (exit status 1 if any does)."""
    from antiphon.runtime.record import replay as decide_again

    try:
        count, differences = decide_again(record, preset)
        warn_of_cut(record)
    except (AntiphonError, OSError) as error:
        fail(error)
    for difference in differences[:most]:
        console.print(f"[bold]decision {difference.index}[/] at {difference.now:.3f} s")
        console.print(f"  recorded: {difference.recorded}", markup=False)
        console.print(f"  replayed: {difference.replayed}", markup=False)
    console.print(f"{counted(count, 'decision')}, {counted(len(differences), 'difference')}")
    raise typer.Exit(1 if differences else 0)


def lift(
    record: Annotated[Path, typer.Argument(help="A record of version 1.")],
    new: Annotated[Path, typer.Argument(help="Where one of the present version is written.")],
) -> None:
    """Turn a record that an earlier Antiphon wrote into one that this one reads."""
    from antiphon.runtime.lift import lift as turn

    try:
        console.print(counted(turn(record, new), "decision"))
    except (AntiphonError, OSError) as error:
        fail(error)
