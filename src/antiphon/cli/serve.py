"""`antiphon serve` and `antiphon replay`."""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.markup import escape

from antiphon.assembly.deployment import Deployment, DeploymentLimits
from antiphon.assembly.deployment_file import deployment_names
from antiphon.assembly.preset import read_preset, readers_of
from antiphon.checkpoint.parts import check_whole
from antiphon.checkpoint.side_files import read_json
from antiphon.checkpoint.source import check_source
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

MAX_PORT = 65535
LIMITS = DeploymentLimits()
"""As they are where nothing is said."""

MODEL, ROOM, ACCESS, DECISIONS = (
    "The model and its machine",
    "Memory and limits",
    "Where it listens, and to whom",
    "Decisions and records",
)
"""Groups of options."""


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
    host: Annotated[str, typer.Option(rich_help_panel=ACCESS, help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            rich_help_panel=ACCESS, min=0, max=MAX_PORT, help="Port to listen on; 0 picks a free one."
        ),
    ] = 8000,
    name: Annotated[
        str,
        typer.Option(rich_help_panel=MODEL, help="Name clients ask for; the checkpoint's name by default."),
    ] = "",
    preset: Annotated[
        str, typer.Option(rich_help_panel=DECISIONS, help=f"Which policies decide: {PRESETS}.")
    ] = "baseline",
    profile: Annotated[
        str,
        typer.Option(
            rich_help_panel=DECISIONS,
            help="What steps and copies take, for policies that ask: a datasheet's hardware, or a file that "
            "`antiphon profile` wrote; by default what they report.",
        ),
    ] = "",
    device: Annotated[str, typer.Option(rich_help_panel=MODEL, help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[
        str, typer.Option(rich_help_panel=MODEL, help="auto, float32, bfloat16, float16 or float64.")
    ] = "auto",
    attention: Annotated[
        str,
        typer.Option(
            rich_help_panel=MODEL,
            help="auto, cpu-bf16, cpu, reference, or flashinfer or triton (both unverified).",
        ),
    ] = "auto",
    max_rows: Annotated[
        int,
        typer.Option(
            rich_help_panel=ROOM,
            help="Requests that run at once in a stage; 0: by the model and the machine, as `antiphon doctor "
            "--model` explains it.",
        ),
    ] = 0,
    kv_tokens: Annotated[
        int,
        typer.Option(
            rich_help_panel=ROOM,
            help="KV capacity of each stage, in tokens; 0: by the memory that is free.",
        ),
    ] = 0,
    host_kv_tokens: Annotated[
        int,
        typer.Option(
            rich_help_panel=ROOM,
            help="KV of idle sessions that each stage may keep in host memory, in tokens; 0: none.",
        ),
    ] = 0,
    max_context_tokens: Annotated[
        int, key_option("limits.max_context_tokens", ROOM)
    ] = LIMITS.max_context_tokens,
    threads: Annotated[
        int, typer.Option(rich_help_panel=MODEL, help="CPU threads of the engine; 0 leaves torch's default.")
    ] = 0,
    depth: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=MODEL, help="Steps in flight, 0 or 1; by default 1 on CUDA and 0 on a CPU."
        ),
    ] = None,
    cuda_graphs: Annotated[
        bool,
        typer.Option(
            "--cuda-graphs", rich_help_panel=MODEL, help="Decode with CUDA graphs (unverified; CUDA only)."
        ),
    ] = False,
    tensor_parallel: Annotated[
        int,
        typer.Option(rich_help_panel=MODEL, help="Processes that compute each decoder together (CPU only)."),
    ] = 1,
    stages_apart: Annotated[
        bool,
        typer.Option("--stages-apart", rich_help_panel=MODEL, help="Every stage in a process of its own."),
    ] = False,
    load_format: Annotated[
        str,
        typer.Option(
            rich_help_panel=MODEL,
            help="auto, or dummy: random weights, for which config and tokenizer are enough.",
        ),
    ] = "auto",
    layer_groups: Annotated[int, key_option("layer_groups", MODEL)] = 1,
    step_s: Annotated[float | None, key_option("step_s", DECISIONS)] = None,
    max_sessions: Annotated[int, key_option("limits.max_sessions", ROOM)] = LIMITS.max_sessions,
    max_open_responses: Annotated[
        int, key_option("limits.max_open_responses", ROOM)
    ] = LIMITS.max_open_responses,
    max_best_effort_responses: Annotated[
        int, key_option("limits.max_best_effort_responses", ROOM)
    ] = LIMITS.max_best_effort_responses,
    min_lead_s: Annotated[float, key_option("limits.min_lead_s", ROOM)] = LIMITS.min_lead_s,
    media_hosts: Annotated[
        str,
        typer.Option(
            rich_help_panel=ACCESS,
            help="Comma-separated hosts (host or host:port) to fetch media URLs from; none: off.",
        ),
    ] = "",
    max_audio_s: Annotated[
        float, key_option("limits.session.max_audio_s", ROOM)
    ] = LIMITS.session.max_audio_s,
    max_items: Annotated[int, key_option("limits.session.max_items", ROOM)] = LIMITS.session.max_items,
    origins: Annotated[
        str,
        typer.Option(
            rich_help_panel=ACCESS,
            help="Comma-separated web origins that may connect beside the server's own.",
        ),
    ] = "",
    api_keys: Annotated[
        str,
        typer.Option(
            rich_help_panel=ACCESS, envvar="ANTIPHON_API_KEYS", help="Comma-separated keys; none means open."
        ),
    ] = "",
    tls_certificate: Annotated[
        Path | None, typer.Option(rich_help_panel=ACCESS, help="PEM certificate: serve https and wss.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(rich_help_panel=ACCESS, help="PEM key of the certificate.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=DECISIONS,
            help="Write every fact and decision to this file, which must not exist.",
        ),
    ] = None,
) -> None:
    """Serve a model over OpenAI's Realtime and HTTP protocols, and a console page where it says."""
    from antiphon.runtime.messages import Start
    from antiphon.runtime.record import check_new
    from antiphon.server.launch import ServeOptions, run
    from antiphon.server.settings import ServerSettings
    from antiphon.wire.limits import Limits

    log_to_stderr()
    try:
        flags = partial(
            EngineOptions,
            device=device,
            dtype=dtype,
            attention=attention,
            preset=preset,
            profile=profile,
            max_rows=max_rows,
            kv_tokens=kv_tokens,
            host_kv_tokens=host_kv_tokens,
            max_context_tokens=max_context_tokens,
            threads=threads,
            depth=depth,
            graphs="on" if cuda_graphs else "off",
            tensor_parallel=tensor_parallel,
            layer_groups=layer_groups,
            step_s=step_s,
            load_format=load_format,
            stages_apart=stages_apart,
        )
        settings = ServerSettings(
            limits=Limits(max_audio_s=max_audio_s, max_items=max_items),
            origins=split(origins),
            api_keys=split(api_keys),
            max_sessions=max_sessions,
            max_open_responses=max_open_responses,
            max_best_effort_responses=max_best_effort_responses,
            min_lead_s=min_lead_s,
            media_hosts=split(media_hosts),
        )
        if config:  # torch comes with it, which the server itself does not need
            from antiphon.cli.deployments import applied, resolved

            deployed, model = resolved(config, model, console.print)
            options, settings = applied(deployed, given_options(context), flags.keywords, settings)
        else:
            options, model = flags(), Deployment().source(model)
        # what is wrong there is said before anything starts
        settings = replace(settings, readers=readers_of(read_preset(options.preset), settings.readers))
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
        if is_open(host) and not settings.api_keys:
            console.print(
                f"[bold yellow]warning:[/] --host {escape(host)} without --api-keys: whoever reaches "
                "this machine may talk to the model and watch all sessions",
                soft_wrap=True,
            )
        start = Start(model, name or name_of(model), options, str(record.absolute()) if record else None)
        where = ServeOptions(host, port, tls_certificate, tls_key)
        with LoadingBar() as progress:
            asyncio.run(run(start, settings, where, progress.show))
    except AntiphonError as error:
        fail(error)


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
            raise ConfigError(f"--origins: {origin!r} is no origin such as https://host or https://host:8443")


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
                f"--media-hosts: {host!r} is no host such as media.example or media.example:8443"
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
