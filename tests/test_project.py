"""The files around the package: workflows, forms and containers, checked without a network or a container engine."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent

SCHEMAS = {
    ".github/workflows/*.yml": "vendor.github-workflows",
    ".github/dependabot.yml": "vendor.dependabot",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
    "CITATION.cff": "vendor.citation-file-format",
}


@pytest.mark.parametrize("pattern", SCHEMAS)
def test_files_follow_their_schema(pattern: str) -> None:
    files = sorted(ROOT.glob(pattern))
    assert files
    run("check-jsonschema", "--default-filetype", "yaml", "--builtin-schema", SCHEMAS[pattern], *files)


def test_pre_commit_configuration_is_valid() -> None:
    run("pre-commit", "validate-config", ROOT / ".pre-commit-config.yaml")


def test_dockerfiles_pass_the_linter() -> None:
    run("hadolint", ROOT / "Dockerfile", *sorted((ROOT / "docker").glob("*.Dockerfile")))


def run(program: str, *arguments: str | Path) -> None:
    done = subprocess.run([BIN / program, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
