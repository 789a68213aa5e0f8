"""Check that the committed generated code is current and that the contract breaks no promise.

Regenerates into a scratch folder and compares; then lets buf compare the protos with an earlier
commit of the main branch. Knows nothing about the protos' style: `make lint` does.
"""

import filecmp
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.generate_protos import REPOSITORY, generate

BUF = Path(sys.executable).parent / "buf"


def different_files(committed: Path, fresh: Path) -> list[str]:
    """Name the files, relative to both folders, that differ or are missing on one side."""
    names = {
        str(path.relative_to(root))
        for root in (committed, fresh)
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return sorted(name for name in names if not _is_same(committed / name, fresh / name))


def _is_same(left: Path, right: Path) -> bool:
    return left.is_file() and right.is_file() and filecmp.cmp(left, right, shallow=False)


def earlier_commit(repository: Path) -> str | None:
    """Find the commit whose contract must not be broken.

    Returns:
        Where this work left main; on main itself the commit before; None where a clone has no
        history that deep.
    """
    head = _commit(repository, "HEAD")
    for branch in ("origin/main", "main"):
        if _commit(repository, branch) is not None:
            base = _git(repository, "merge-base", "HEAD", branch)
            if base is not None and base != head:
                return base
    return _commit(repository, "HEAD~1")


def _commit(repository: Path, name: str) -> str | None:
    return _git(repository, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")


def _git(repository: Path, *arguments: str) -> str | None:
    """Return what git prints, or None where it answers no."""
    result = subprocess.run(["git", *arguments], cwd=repository, check=False, capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else None


def breaks_contract(repository: Path, commit: str) -> bool:
    """Let buf compare the protos with those of ``commit``; it prints what breaks."""
    with tempfile.TemporaryDirectory() as scratch:
        # An archive, because buf clones a whole repository for a git reference, and a shallow one fails.
        archive = Path(scratch) / "earlier.tar"
        _run_git_archive(repository, commit, archive)
        result = subprocess.run([BUF, "breaking", "--against", str(archive)], cwd=repository, check=False)
    return result.returncode != 0


def _run_git_archive(repository: Path, commit: str, archive: Path) -> None:
    subprocess.run(
        ["git", "archive", "--output", str(archive), commit, "buf.yaml", "protos"], cwd=repository, check=True
    )


def main() -> int:
    """Run both checks and tell each outcome in a line."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        stale = different_files(REPOSITORY / "protos" / "gen" / "stepwire", Path(scratch) / "stepwire")
    if stale:
        print("protos/gen is not what the protos make; run `make proto`: " + ", ".join(stale))
        return 1
    print("protos/gen is current")
    commit = earlier_commit(REPOSITORY)
    if commit is None:
        print("no earlier commit in this clone: nothing to compare the contract with")
        return 0
    if breaks_contract(REPOSITORY, commit):
        print(f"the contract breaks what commit {commit[:12]} promised")
        return 1
    print(f"the contract keeps what commit {commit[:12]} promised")
    return 0


if __name__ == "__main__":
    sys.exit(main())
