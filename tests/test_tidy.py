"""The tree keeps its own rules: short functions and files, nothing left open, documents that are true."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from functools import cache
from importlib import import_module
from itertools import permutations
from pathlib import Path

import pytest

import ottla
from ottla.cli.main import NOUNS
from ottla.config.broker_settings import BROKER_SETTINGS
from tests.harness import walks
from tests.spark.conftest import IN_MAKE_TEST
from tools import file_map

REPOSITORY = Path(__file__).resolve().parent.parent
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500
REQUIREMENTS = 92

OLD_TERMS = (
    "anew", "aside", "asking", "bare", "census", "departed", "doom", "doors", "erased", "expelled", "figures", "grown",
    "guarded", "guests", "hurry", "in_touch", "letter", "mould", "namesake", "outbox", "outlook", "parked", "parting",
    "place", "places", "reign", "rounds", "sealed", "sift", "sight", "speaker", "stranger", "surroundings", "told",
    "touched", "turn", "turned_away", "unkept", "who", "whoever",
)  # fmt: skip
"""Terms of our own that Kafka's have replaced (docs/GLOSSARY.md): they stay out of identifiers and module names."""
SAME_ON_PURPOSE = frozenset({"Admin", "Broker", "Cluster", "Consumer", "Producer"})
"""Blocking clients have the names of asynchronous ones, and fixtures of `testing` those of what they start."""

# Spelled in halves, so that this file does not find itself.
LEFT_OPEN = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")
PRIVATE_PATHS = tuple("/" + name + "/" for name in ("root", "work", "home", "Users"))
REGISTRY_HOSTS = tuple(
    name + "." + tail
    for name, tail in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("repo1.maven", "org"),
        ("repo.maven.apache", "org"),
        ("registry.npmjs", "org"),
    )
)


@cache
def tracked() -> list[Path]:
    try:
        listed = subprocess.run(
            ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [REPOSITORY / name for name in listed if (REPOSITORY / name).is_file()]


def python_files() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


def text_files() -> list[Path]:
    return [path for path in tracked() if path.suffix not in (".png", ".svg", ".db", ".gz")]


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def generated(path: Path) -> bool:
    return name_of(path).startswith("ottla/wire/schema/")


def test_functions_are_short():
    long = [
        f"{name_of(path)}:{node.lineno} {node.name} ({length} lines)"
        for path in python_files()
        if not generated(path)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_modules_are_short():
    long = [
        f"{name_of(path)} ({lines} lines)"
        for path in python_files()
        if not generated(path) and (lines := path.read_text().count("\n")) > MODULE_LINES_MAX
    ]
    assert long == []


def test_every_module_says_what_it_is():
    silent = [
        name_of(path)
        for path in python_files()
        if path.read_text().strip() and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert silent == []


def test_nothing_is_left_open():
    found = [
        f"{name_of(path)}:{number}"
        for path in text_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if any(re.search(rf"\b{word}\b", line) for word in LEFT_OPEN)
    ]
    assert found == []


def test_no_file_names_a_registry_or_somebodys_machine():
    found = [
        f"{name_of(path)}: {word}"
        for path in text_files()
        for word in (*REGISTRY_HOSTS, *PRIVATE_PATHS)
        if word in path.read_text()
    ]
    assert found == []


def test_constraints_name_versions_and_no_addresses():
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", pin) for pin in pins)
    pinned = {normal(pin.split("==")[0]) for pin in pins}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(spec for extra in extras for spec in extra)]
    missing = {name for spec in wanted if (name := normal(re.split(r"[\[<>=;! ]", spec)[0])) not in pinned}
    assert missing == set()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_links_in_documents_lead_somewhere():
    broken = [
        f"{name_of(path)}: {target}"
        for path in tracked()
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text())
        if not re.match(r"[a-z]+:", target) and not resolves(path, target)
    ]
    assert broken == []


def resolves(document: Path, target: str) -> bool:
    file, _, anchor = target.partition("#")
    destination = (document.parent / file) if file else document
    if not destination.exists():
        return False
    if not anchor:
        return True
    headings = re.findall(r"^#+ (.+)$", destination.read_text(), flags=re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_every_requirement_is_mapped_to_a_test_or_listed_as_open():
    text = (REPOSITORY / "docs" / "requirements.md").read_text()
    rows = re.findall(r"^\| S(\d+) \|.*\| (.+) \|$", text, flags=re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, REQUIREMENTS + 1))
    for number, shown in rows:
        if shown == "open":
            continue
        assert "`tests/" in shown, f"S{number} names no test and is not open"


@pytest.mark.parametrize("page", ["requirements.md", "proof.md"])
def test_tests_that_a_page_names_are_there(page):
    named = re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", (REPOSITORY / "docs" / page).read_text())
    assert named
    for file, test in named:
        source = REPOSITORY / file
        assert source.exists(), file
        assert f"def {test.rsplit('::', 1)[-1]}(" in source.read_text(), f"{file}::{test}"


def test_scenarios_that_the_proof_names_are_there():
    rows = [line for line in (REPOSITORY / "docs" / "proof.md").read_text().splitlines() if "scenario" in line]
    named = [quoted.removesuffix(" …") for row in rows for quoted in re.findall(r'"([^"]+)"', row)]
    files = (REPOSITORY / "tests" / "scenarios").glob("*.txt")
    headings = [line[2:] for file in files for line in file.read_text().splitlines() if line.startswith("# ")]
    assert len(named) > 5
    assert [each for each in named if not any(heading.startswith(each) for heading in headings)] == []


def test_the_file_map_lists_every_module_with_its_first_words():
    document = file_map.DOCUMENT.read_text()
    assert document == file_map.with_map(document), "run: python tools/file_map.py"


def test_the_changelog_has_an_unreleased_section():
    """And nothing stands outside of its sections."""
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    unreleased = text.partition("\n## Unreleased\n")[2].partition("\n## ")[0]
    before, *sections = unreleased.split("\n### ")
    assert "\n- " not in before, "an entry belongs under Added, Changed or Fixed"
    known = {"Before you upgrade", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert {section.partition("\n")[0] for section in sections} <= known


def test_commands_in_the_readme_exist():
    text = (REPOSITORY / "README.md").read_text()
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z][a-z-]*)", text)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"make {target}"
    for noun in set(re.findall(r"\bottla ([a-z]+)\b", "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)))):
        assert noun in NOUNS, f"ottla {noun}"


def test_data_directories_in_a_checkout_are_ignored_by_git():
    ignored = (REPOSITORY / ".gitignore").read_text().splitlines()
    zookeeper = next(each for each in import_module(NOUNS["zookeeper"].module).command.params if each.name == "data")
    assert {f"{BROKER_SETTINGS['log.dir'].default}/", f"{zookeeper.default}/"} <= {*ignored}


def test_the_files_that_documents_name_are_there():
    """By their whole path in any document, and below `ottla` in the architecture and the glossary."""
    missing = set()
    for path in tracked():
        if path.suffix != ".md":
            continue
        named = set(re.findall(r"`((?:ottla|tests|tools|bench|examples|deploy|docs)/[\w./-]+\.\w+)`", path.read_text()))
        if path.name in ("ARCHITECTURE.md", "GLOSSARY.md"):
            below = re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", path.read_text())
            assert below, path.name
            named |= {f"ottla/{name}" for name in below if not name.startswith(("ottla/", "tests/", "tools/"))}
        missing |= {f"{name_of(path)}: {name}" for name in named if not (REPOSITORY / name).exists()}
    assert missing == set()


def test_walks_name_functions_that_are_there():
    """Whether they are called in this order: tests/behaviour/test_walks.py, tests/spark/test_walk.py."""
    found = walks.walks(walks.PAGE.read_text())
    assert len(found) == 6
    assert [problem for named in found.values() for problem in walks.missing(named)] == []


def test_documents_agree_on_how_many_walks_there_are():
    [counted] = re.findall(r"^## (\w+) walks$", (REPOSITORY / "docs" / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    for name in ("README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md"):
        assert {*re.findall(r"(\w+) walks\b", (REPOSITORY / name).read_text())} <= {counted, counted.lower()}, name


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["version"] == ottla.__version__


def test_broker_and_coordinator_use_the_partition_not_its_log():
    reach = re.compile(r"\b(partition|replica)\.log\b")
    rooms = [path for room in ("broker", "coordinator") for path in (REPOSITORY / "ottla" / room).rglob("*.py")]
    assert [name_of(path) for path in rooms if reach.search(path.read_text())] == []


def test_the_tests_that_start_spark_in_make_test_are_there():
    texts = [path.read_text() for path in (REPOSITORY / "tests" / "spark").rglob("test_*.py")]
    assert {name for name in IN_MAKE_TEST if not any(f"def {name}(" in text for text in texts)} == set()


def test_every_module_has_a_test_file_or_is_listed_with_one():
    """`tests/<room>/**/test_x.py` for module `x`, or a row of docs/testing.md."""
    modules = [path.relative_to(REPOSITORY / "ottla") for path in python_files() if name_of(path).startswith("ottla/")]
    tests = {(path.relative_to(REPOSITORY / "tests").parts[0], path.name) for path in python_files() if in_tests(path)}
    alone = {
        str(path)
        for path in modules
        if path.name != "__init__.py"
        and not generated(REPOSITORY / "ottla" / path)
        and (path.parts[0], f"test_{path.name}") not in tests
    }
    _, _, section = (REPOSITORY / "docs" / "testing.md").read_text().partition("## Modules without a test file")
    rows = re.findall(r"^\| (`tests/.+`) \| (.+) \|$", section.partition("\n## ")[0], flags=re.MULTILINE)
    assert sorted(name for _, named in rows for name in re.findall(r"`([^`]+)`", named)) == sorted(alone)


def in_tests(path: Path) -> bool:
    return name_of(path).startswith("tests/")


def identifiers(path: Path) -> set[str]:
    """All names that a module defines or uses, and its own."""
    names = {path.stem}
    for node in ast.walk(ast.parse(path.read_text())):
        for field in ("id", "attr", "name", "arg", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                names.add(name.rpartition(".")[2])
    return names


def test_identifiers_have_kafkas_terms():
    anywhere = re.compile("|".join(OLD_TERMS).replace("_", "_?"), flags=re.IGNORECASE)
    found = []
    for path in python_files():
        if generated(path) or not anywhere.search(f"{name_of(path)} {path.read_text()}"):
            continue
        for name in identifiers(path):
            words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)
            spelled = f"_{'_'.join(words).lower()}_"
            found += [f"{name_of(path)}: {name}" for term in OLD_TERMS if f"_{term}_" in spelled]
    assert sorted(found) == []


def test_class_names_are_unique_within_neighbouring_rooms():
    """Two rooms are neighbours if one imports the other. The simulator, which imports all rooms, does not count."""
    classes: dict[str, dict[str, list[str]]] = {}
    neighbours: set[tuple[str, str]] = set()
    for path in python_files():
        package, room, *_ = [*Path(name_of(path)).with_suffix("").parts, ""]
        if package != "ottla" or room == "sim" or generated(path):
            continue
        text = path.read_text()
        for name in re.findall(r"^class ([A-Za-z]\w*)", text, flags=re.MULTILINE):
            classes.setdefault(name, {}).setdefault(room, []).append(name_of(path))
        for imported in re.findall(r"^\s*(?:from|import) ottla\.(\w+)", text, flags=re.MULTILINE):
            neighbours |= {(room, imported), (imported, room)}
    shared = {
        name: [file for files in rooms.values() for file in files]
        for name, rooms in classes.items()
        if any(len(files) > 1 for files in rooms.values()) or neighbours & {*permutations(rooms, 2)}
    }
    assert {name: files for name, files in shared.items() if name not in SAME_ON_PURPOSE} == {}
