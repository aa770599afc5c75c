"""A release: one version, archives that are the same whenever they are built, and what is in
them.
"""

import configparser
import email
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from refusing import assert_raises

import gristmill

ROOT = Path(__file__).parents[1]


def script(name):
    """Returns the module of a script in .ci, which other scripts import by this name."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f".ci/{name}.py")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


pythons, release, tested = script("pythons"), script("release"), script("tested")
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
VERSION = SETUP["metadata"]["version"]
PACKAGES = SETUP["options"]["packages"].split()
EPOCH = 1_700_000_000


@functools.cache
def tracked() -> list[str]:
    """The files of this repository, or of the sdist that the tests run from."""
    if (ROOT / ".git").exists():
        names = release.output(
            "git", "ls-files", "--cached", "--others", "--exclude-standard", folder=ROOT
        ).splitlines()
        return [name for name in names if (ROOT / name).is_file()]
    generated = (
        "PKG-INFO",
        "gristmill.egg-info/",
        ".pytest_cache/",
        ".hypothesis/",
        "build/",
        "dist/",
        "out/",
    )
    names = [
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return [name for name in names if not name.startswith(generated)]


def test_the_version_is_that_of_setup_cfg():
    assert gristmill.__version__ == importlib.metadata.version("gristmill") == VERSION
    assert gristmill.__version_info__[:2] == tuple(map(int, VERSION.split(".")[:2]))
    version = re.escape(VERSION)
    assert re.search(
        rf"^## \[{version}\] - (unreleased|\d{{4}}-\d\d-\d\d)$",
        (ROOT / "CHANGELOG.md").read_text(),
        re.M,
    )
    folders = {package.split(".")[1] for package in PACKAGES if "." in package} - {"python"} | {
        "api"
    }
    files = [
        name
        for name in tracked()
        if name.split("/")[0] in folders | {"Makefile", "README.md", "pyproject.toml", ".ci"}
    ]
    assert len(files) > 100
    repeats = re.compile(rf"(?<![\w.]){version}(?![\w.])")
    assert [
        name
        for name in files
        if repeats.search((ROOT / name).read_text(encoding="utf-8", errors="replace"))
    ] == []


def test_the_workflow_runs_every_supported_python():
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    python = "Programming Language :: Python :: "
    classifiers = SETUP["metadata"]["classifiers"].split("\n")
    versions = [line.removeprefix(python) for line in classifiers if line.startswith(f"{python}3")]
    matrices = [json.loads(found) for found in re.findall(r"^ +python: (\[.*\])$", text, re.M)]
    assert matrices == [versions] * 3  # Linux, macOS and Windows
    for target in re.findall(r"make ([-a-z]+)", text):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text(), target


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folders with an sdist and a wheel each, of files with other times and permissions, in folders
    of other names.
    """
    dists, original = [], ROOT
    for number, umask in enumerate((0o022, 0o027)):
        place = tmp_path_factory.mktemp("release")
        source = place / f"source-{number}"
        before = os.umask(umask)
        try:
            for name in tracked():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(original / name, source / name)
                os.utime(source / name, (time.time() - 1e6 * number,) * 2)
            release.build(source, place / "dist", EPOCH)
        finally:
            os.umask(before)
        dists.append(place / "dist")
        original = source  # the files may be in use
    return dists


@pytest.mark.slow
class TestArchives:
    def test_two_builds_have_the_same_bytes(self, built):
        names = [sorted(path.name for path in dist.iterdir()) for dist in built]
        assert (
            names[0]
            == names[1]
            == [f"gristmill-{VERSION}-py3-none-any.whl", f"gristmill-{VERSION}.tar.gz"]
        )
        for name in names[0]:
            assert (built[0] / name).read_bytes() == (built[1] / name).read_bytes(), name

    def test_the_wheel_has_metadata_and_the_modules_alone(self, built):
        info = f"gristmill-{VERSION}.dist-info/"
        with zipfile.ZipFile(built[0] / f"gristmill-{VERSION}-py3-none-any.whl") as wheel:
            names = {name for name in wheel.namelist() if not name.startswith(info)}
            metadata = email.message_from_bytes(wheel.read(f"{info}METADATA"))
        folders = {package: package.replace(".", "/") for package in PACKAGES}
        mapped = dict(
            map(str.strip, line.split("="))
            for line in SETUP["options"]["package_dir"].strip().splitlines()
        )
        expected = {"gristmill/py.typed"}
        for package, folder in folders.items():
            top = max((name for name in mapped if f"{package}.".startswith(f"{name}.")), key=len)
            here = ROOT / mapped[top] / package[len(top) + 1 :].replace(".", "/")
            data = SETUP["options.package_data"].get(package, "").replace(",", " ").split()
            for pattern in ("*.py", *(set(data) - {"py.typed"})):
                expected |= {f"{folder}/{path.name}" for path in here.glob(pattern)}
        assert names == expected >= {f"{folder}/__init__.py" for folder in folders.values()}
        pages = ("report.html.j2", "report.css", "viewer.html.j2", "viewer.css", "viewer.js")
        assert {f"gristmill/diagnostics/html/{name}" for name in pages} <= names
        fields = {
            "Name": "gristmill",
            "Version": VERSION,
            "License-Expression": "Apache-2.0",
            "License-File": "LICENSE",
        }
        fields |= {
            "Requires-Python": ">={}.{}".format(*pythons.OLDEST),
            "Description-Content-Type": "text/markdown",
        }
        assert {name: metadata[name] for name in fields} == fields
        assert metadata.get_payload(decode=True).decode().startswith("# gristmill")
        assert set(metadata.get_all("Provides-Extra")) == {*SETUP["options.extras_require"]}
        needed = {
            re.split(r"[^\w-]", line)[0]
            for line in metadata.get_all("Requires-Dist")
            if "extra ==" not in line
        }
        assert needed == {"numpy", "cloudpickle", "array-record"}

    def test_the_sdist_is_the_repository_with_one_owner_and_time(self, built):
        sdist = built[0] / f"gristmill-{VERSION}.tar.gz"
        there = {
            name for name in release.names_in(sdist) if not name.startswith("gristmill.egg-info/")
        }
        assert {*tracked()} <= there <= {*tracked(), "PKG-INFO"}
        with tarfile.open(sdist) as archive:
            members = archive.getmembers()
        assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {
            (0, 0, "", "", EPOCH)
        }
        assert {oct(m.mode) for m in members} <= {"0o644", "0o755"}
        assert [m.name for m in members] == sorted(m.name for m in members)


MACHINES = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")]
WITHOUT_WHEELS = [("linux", "riscv64"), ("darwin", "x86_64"), ("win32", "AMD64")]


def requires_array_record(version, system, machine, implementation="cpython"):
    names = {"python_version": version, "implementation_name": implementation}
    environment = {**names, "sys_platform": system, "platform_machine": machine}
    lines = map(Requirement, SETUP["options"]["install_requires"].strip().splitlines())
    markers = [line.marker for line in lines if line.name == "array-record"]
    return any(marker.evaluate(environment) for marker in markers)


def test_array_record_is_required_only_with_wheels():
    for machine in MACHINES:
        assert requires_array_record("3.11", *machine) and requires_array_record("3.12", *machine)
        assert not requires_array_record("3.11", *machine, "pypy")
        # with or without the GIL, which markers do not see
        for version in ("3.13", "3.14", "3.15"):
            assert not requires_array_record(version, *machine)
    assert not any(requires_array_record("3.11", *machine) for machine in WITHOUT_WHEELS)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_what_may_be_released(tmp_path):
    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments],
            cwd=tmp_path,
            check=True,
        )

    def commit(version, heading):
        (tmp_path / "setup.cfg").write_text(f"[metadata]\nversion = {version}\n")
        (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## [1.2.3] - {heading}\n\n- all\n")
        git("add", ".")
        git("commit", "--quiet", "-m", "all")

    git("init", "--quiet")
    commit("1.2.3", "2026-01-31")
    assert release.check_tree(tmp_path) == "1.2.3" and not release.is_unreleased(tmp_path, "1.2.3")
    (tmp_path / "new.py").touch()
    assert_raises(
        SystemExit, r"commit or remove these first:\n\?\? new\.py", release.check_tree, tmp_path
    )
    commit("1.2.30", "2026-01-31")
    assert_raises(
        SystemExit,
        r"CHANGELOG.md has no heading '## \[1\.2\.30\] - <date>'",
        release.check_tree,
        tmp_path,
    )
    commit("1.2.3", "unreleased")  # a try
    assert release.check_tree(tmp_path) == "1.2.3" and release.is_unreleased(tmp_path, "1.2.3")


def test_interpreters_are_found_once_and_named_in_the_metadata():
    found = pythons.find_pythons()
    probe = "import sys; print('%d.%d' % sys.version_info[:2] + sys.abiflags.strip('d'))"
    versions = [(*map(int, name.rstrip("t").split(".")), name[-1] == "t") for name in found]
    assert versions == sorted(versions) and versions[0][:2] >= pythons.OLDEST
    assert sys.executable in found.values()
    for name, path in found.items():
        version = subprocess.run([path, "-c", probe], capture_output=True, text=True, check=True)
        assert version.stdout == f"{name}\n"
    named = re.findall(r"Python :: (3\.\d+)", SETUP["metadata"]["classifiers"])
    assert named[0] == ".".join(map(str, pythons.OLDEST)) and len(named) >= 3


def test_the_readme_has_the_recorded_runs_of_the_tests(tmp_path):
    text = tested.README.read_text()
    assert tested.with_table(text, json.loads(tested.RECORDED.read_text())) == text
    report = tmp_path / "tests.xml"
    suite = (
        '<a><b errors="0" failures="{}" skipped="2" tests="9" timestamp="2031-02-03T04:05"/></a>'
    )
    report.write_text(suite.format(0))
    found = tested.record_of(report, "all")
    assert found["python"] == platform.python_version()
    record = {**found, "python": "3.11.7", "free_threaded": False, "system": "Linux x86_64"}
    older = {**record, "python": "3.11.6", "date": "2031-02-02"}
    other = {**record, "python": "3.13.1", "free_threaded": True}
    records = tested.with_record(tested.with_record([other, older], record), other)
    assert tested.with_table("<!-- tested -->\n| old |\n\nrest\n", records).splitlines()[3:] == [
        "| 3.11.7 | Linux x86_64 | all | 7 | 2 | 2031-02-03 |",
        "| 3.13.1, free-threaded | Linux x86_64 | all | 7 | 2 | 2031-02-03 |",
        "",
        "rest",
    ]
    report.write_text(suite.format(1))
    assert_raises(SystemExit, "all tests pass", tested.record_of, report, "all")
