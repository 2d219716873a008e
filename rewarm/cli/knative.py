"""``rewarm knative render`` and ``check``: manifests from a configuration, and what is wrong with manifests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from rewarm.cli.knative_files import collected, text_of, write
from rewarm.cli.options import json_option
from rewarm.errors import ManifestInvalid
from rewarm.knative.check import check as check_all
from rewarm.knative.check import checked
from rewarm.knative.finding import Finding
from rewarm.knative.operator import operator_of
from rewarm.knative.render import Backend
from rewarm.knative.render import render as render_all
from rewarm.knative.text import HEADER, documents, dump, manifests

FOUND_ERRORS = 12
"""Exit code of `check` where a finding is an error."""

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}

backend_option = click.option(
    "--backend",
    type=click.Choice(["knative", "deployment"]),
    default="knative",
    show_default=True,
    help="What each worker is: a Knative Service, or a Deployment.",
)


@click.group(short_help="Manifests for Knative: render them, check them.")
def knative() -> None:
    """Workers as pods: manifests from the same configuration that `rewarm serve` takes, and their check."""


@knative.command(short_help="Write the workers' manifests of a configuration.")
@click.argument("config_path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path, file_okay=False), help="A folder; else standard output.")
@backend_option
@json_option
def render(config_path: Path, out: Path | None, backend: Backend, as_json: bool) -> None:
    """Write one manifest for each replica that each model may have, and the ConfigMap with FILE.

    With -o also a kustomization.yaml, so that an overlay can name the folder; files of an earlier render whose model is
    gone are removed.
    """
    rendered = render_all(text_of(config_path), backend, str(config_path))
    if out is not None:
        written, removed = write(out, rendered)
        if as_json:
            click.echo(json.dumps({"folder": str(out), "written": written, "removed": removed}, indent=2))
        else:
            click.echo(
                f"{out}: {len(written)} files" + (f", {len(removed)} of models that are gone" if removed else "")
            )
    elif as_json:
        click.echo(json.dumps(list(rendered.values()), indent=2))
    else:
        click.echo(HEADER + "---\n".join(dump(document) for document in rendered.values()), nl=False)


@knative.command(short_help="Say what is wrong with manifests, offline.")
@click.argument("sources", metavar="FILE|FOLDER|-...", nargs=-1, required=True)
@click.option(
    "--flags",
    "flag_files",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="The cluster's config-features, config-defaults, config-autoscaler as YAML. Repeatable.",
)
@backend_option
@json_option
def check(sources: Sequence[str], flag_files: Sequence[Path], backend: Backend, as_json: bool) -> None:
    """Check manifests, folders of them, standard input (-) or configuration files, which are rendered first.

    Against Knative's own schemas and limits, a list of annotations (misspelt ones do nothing, in silence), the feature
    flags of the cluster (--flags) and, where the configuration is among them, every pair of times that must fit.
    """
    found = [manifest for source in sources for manifest in collected(source, backend)]
    flags = [m for path in flag_files for m in manifests(documents(text_of(path), str(path)), str(path))]
    if flag_files and not any(m.kind == "ConfigMap" for m in flags):
        raise ManifestInvalid(f"{flag_files[0]}: no ConfigMap: save `kubectl get configmap -n knative-serving -o yaml`")
    if not checked(found):
        raise ManifestInvalid(f"{', '.join(sources)}: nothing to check: no Knative Service and no Deployment of rewarm")
    findings = check_all(found, operator_of([*found, *flags]))
    _show(findings, checked(found), as_json)
    if any(finding.level == "error" for finding in findings):
        raise SystemExit(FOUND_ERRORS)


def _show(findings: Sequence[Finding], objects: int, as_json: bool) -> None:
    ok = not any(finding.level == "error" for finding in findings)
    if as_json:
        listed = [asdict(finding) for finding in findings]
        click.echo(json.dumps({"ok": ok, "objects": objects, "findings": listed}, indent=2))
        return
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.level, finding.sentence()), []).append(finding)
    for (level, sentence), places in alike.items():
        shown = places if level == "error" else places[:1]  # of what only has to be known one place is enough
        for f in shown:
            click.echo(f"{f.file}: {f.object}: {click.style(level, fg=_COLOURS[level])}: {f.path}")
        more = f" ({len(places)} places)" if len(places) > len(shown) else ""
        click.echo(f"    {sentence} [{places[0].rule}]{more}")
    counts = [f"{sum(f.level == level for f in findings)} {level}s" for level in _COLOURS]
    click.echo(f"{objects} objects: {', '.join(counts)}")
