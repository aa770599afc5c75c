"""Builds a release twice, compares, checks and tests it, and says how to upload it. Uploads
nothing.

``make release`` runs it. Environment variables: ``TESTS`` are arguments for pytest instead of all
tests, for a quick try; ``PYTHONS`` are the interpreters to test with instead of all that are found.
"""

import configparser
import filecmp
import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from pythons import find_pythons

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = "import gristmill; print(gristmill.__version__, gristmill.__file__)"


def main() -> None:
    version = check_tree(ROOT)
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        epoch = int(output("git", "log", "-1", "--format=%ct"))
        for again in ("first", "second"):
            run("git", "checkout-index", "--all", f"--prefix={folder}/{again}/")
            build(Path(folder, again), Path(folder, f"dist-{again}"), epoch)
        names = sorted(path.name for path in Path(folder, "dist-first").iterdir())
        same, *different = filecmp.cmpfiles(
            f"{folder}/dist-first", f"{folder}/dist-second", names, shallow=False
        )
        if any(different):
            sys.exit(f"release: two builds differ in {different}")
        shutil.copytree(f"{folder}/dist-first", dist)
    sdist, wheel = (
        dist / f"gristmill-{version}.tar.gz",
        dist / f"gristmill-{version}-py3-none-any.whl",
    )
    if {*same} != {sdist.name, wheel.name}:
        sys.exit(f"release: expected {sdist.name} and {wheel.name}, built {same}")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    missing = sorted({*output("git", "ls-files").splitlines()} - names_in(sdist))
    if missing:
        sys.exit(f"release: MANIFEST.in leaves out {missing}")
    found = [path for name, path in find_pythons().items() if not name.endswith("t")]
    pythons = os.environ.get("PYTHONS", "").split() or found
    for python in pythons:
        test(python, version, sdist, wheel)
    print(
        f"\n{sdist.name} and {wheel.name} build reproducibly and pass the tests with"
        f" {', '.join(map(str, pythons))}."
    )
    if os.environ.get("TESTS") or is_unreleased(ROOT, version):
        print("This was a try: a release runs all tests, and has its date in CHANGELOG.md.")
    else:
        print(
            f"To release it: git tag v{version} && git push origin v{version} && {sys.executable}"
            " -m twine upload dist/*"
        )


def check_tree(root: Path) -> str:
    """The version in ``setup.cfg``, of a tree that may be released."""
    changed = output("git", "status", "--porcelain", folder=root)
    if changed:
        sys.exit(f"release: commit or remove these first:\n{changed}")
    setup = configparser.ConfigParser()
    setup.read(root / "setup.cfg")
    version = setup["metadata"]["version"]
    if f"\n## [{version}] - " not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        sys.exit(
            f"release: CHANGELOG.md has no heading '## [{version}] - <date>' for the version in"
            " setup.cfg"
        )
    return version


def is_unreleased(root: Path, version: str) -> bool:
    heading = rf"\n## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n"
    return not re.search(heading, (root / "CHANGELOG.md").read_text(encoding="utf-8"))


def build(source: Path, dist: Path, epoch: int) -> None:
    """Makes an sdist of a folder, and a wheel of the sdist; their bytes depend on the files and
    ``epoch`` only.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist)]
    run(*command, "--sdist", folder=source, environment=environment)
    (sdist,) = dist.iterdir()
    normalise(sdist, epoch)
    with tempfile.TemporaryDirectory() as folder:
        run(*command, "--wheel", folder=unpack(sdist, folder), environment=environment)


def unpack(sdist: Path, folder: str) -> Path:
    run("tar", "-xzf", sdist, "-C", folder)
    return Path(folder, sdist.name.removesuffix(".tar.gz"))


def normalise(sdist: Path, epoch: int) -> None:
    """Writes an archive again, its members in order of their names, with one time, owner and
    permission: setuptools does not.
    """
    old = sdist.rename(sdist.with_suffix(".old"))
    with (
        tarfile.open(old) as members,
        sdist.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, epoch) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for member in sorted(members.getmembers(), key=lambda member: member.name):
            member.mtime, member.pax_headers = epoch, {}
            member.uid, member.gid, member.uname, member.gname = 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            archive.addfile(member, members.extractfile(member) if member.isfile() else None)
    old.unlink()


def names_in(sdist: Path) -> set[str]:
    """The files in an sdist, without the folder that they are in."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


def test(python: str, version: str, sdist: Path, wheel: Path) -> None:
    """Runs the tests that are in the sdist, with the wheel installed in a fresh environment."""
    print(f"\n{python}", flush=True)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "venv", f"{folder}/venv", environment=environment)
        installed = f"{folder}/venv/bin/python"
        run(installed, "-m", "pip", "install", "--quiet", f"{wheel}[test]", environment=environment)
        tests = unpack(sdist, folder)
        found, file = output(
            installed, "-c", INSTALLED, folder=tests, environment=environment
        ).split(" ", 1)
        if found != version or not Path(file).is_relative_to(Path(folder, "venv")):
            sys.exit(f"release: the tests would run with gristmill {found} at {file}")
        arguments = shlex.split(os.environ.get("TESTS", ""))
        run(installed, "-m", "pytest", "-q", *arguments, folder=tests, environment=environment)


def run(
    *command: str | Path, folder: Path = ROOT, environment: dict[str, str] | None = None
) -> None:
    try:
        # permissions are in the archives
        subprocess.run(command, cwd=folder, env=environment, check=True, umask=0o022)
    except subprocess.CalledProcessError as error:
        sys.exit(f"release: {error}")


def output(
    *command: str | Path, folder: Path = ROOT, environment: dict[str, str] | None = None
) -> str:
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
