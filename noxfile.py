"""The tasks of this repository, one a session; `nox -l` lists them.

Every session has an environment of its own, with pip and without other tools. Torch is
large and nearly every session needs it, so that it is unpacked once, alone with what it
requires, and the environments see that folder. Set `DRIVETRAIN_TORCH` to a Python
interpreter that has torch, and its torch is used as it is, with all that lies beside it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import nox
from packaging.version import Version

sys.path.insert(0, str(Path(__file__).parent / "integration"))
from declared import PACKAGES, build_requirements, closure, third_party

if TYPE_CHECKING:
    from collections.abc import Sequence

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "typing", "tests"]

ROOT = Path(__file__).parent
TORCH = "2.13.0"
# The oldest that is promised, and the newest that all tests have passed with.
OTHER_TORCHES = ("2.11.0", "2.15.0")
# As a module, since it may be found where the torch in use is; and without the current
# folder, in which the sources lie.
PYTEST = ("python", "-P", "-m", "pytest")
# Files run side by side, one more than there are cores: many tests wait.
WORKERS = str(min(4, len(os.sched_getaffinity(0)) + 1))
# Areas with files of tests that take minutes each.
_LONG = ("drivetrain", "integration")
SIDE_BY_SIDE = ("-n", WORKERS, "--dist", "loadfile")
SIMULATED = ("python", "-m", "drivetrain_simulated_accelerator")
TOOLS = nox.project.load_toml(ROOT / "pyproject.toml")


def group(name: str) -> tuple[str, ...]:
    """Returns the requirements of a dependency group of the root pyproject.toml."""
    return nox.project.dependency_groups(TOOLS, name)


def provide_torch(session: nox.Session, version: str) -> list[str]:
    """Shows one shared torch to the environment, and returns pip's arguments for it."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(str(session.run("python", "-c", where, silent=True)).strip())
    python = os.environ.get("DRIVETRAIN_TORCH")
    if python:
        code = "import torch; print(torch.__version__.split('+')[0], torch.__file__)"
        found = session.run(python, "-c", code, external=True, silent=True)
        version, file = str(found).split(maxsplit=1)
        folder = Path(file).parents[1]
    else:
        folder = session.cache_dir / f"torch-{version}-{site.parent.name}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        # Two sessions may begin at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            session.install("--target", str(part), f"torch=={version}")
            part.rename(folder)
    (site / "shared_torch.pth").write_text(f"{folder.resolve()}\n")
    constraint = site / "shared_torch.txt"
    constraint.write_text(f"torch=={version}\n")
    return ["--constraint", str(constraint)]


def install(
    session: nox.Session,
    *packages: str,
    groups: Sequence[str] = (),
    extras: bool = False,
    pip: Sequence[str] = (),
    torch: str = TORCH,
) -> None:
    """Installs packages in place, with what they declare, and groups of tools.

    It does so again only when what they declare, or a native part, has changed.
    """
    if shutil.which("ccache"):
        # Each environment compiles what is native anew, from the same sources.
        session.env["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    # Modules are compiled when they are first imported: most of them never are. What is
    # compiled is kept, whatever the machine's settings are: tests start many processes.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    arguments = [*provide_torch(session, torch), "--no-compile", *pip]
    wanted = [
        *packages,
        *groups,
        *pip,
        str(extras),
        torch,
        session.env.get("SKBUILD_WHEEL_CMAKE"),
        os.environ.get("DRIVETRAIN_TORCH"),
    ]
    digest = digest_of(*map(str, wanted))
    stamp = Path(session.virtualenv.location, "installed.txt")
    if stamp.exists() and stamp.read_text() == digest:
        return
    stamp.unlink(missing_ok=True)
    # What builds is installed once, rather than once for each package.
    session.install("--no-compile", *build_requirements(*packages))
    arguments.append("--no-build-isolation")
    for package in closure(*packages):
        names = PACKAGES[package]["project"].get("optional-dependencies", {})
        suffix = f"[{','.join(names)}]" if names and extras else ""
        arguments += ["-e", f"packages/{package}{suffix}"]
    session.install(*arguments, *(line for name in groups for line in group(name)))
    stamp.write_text(digest)


def install_for_tests(session: nox.Session, torch: str = TORCH) -> None:
    """Installs all that tests use: every package with its extras, the examples, the tools."""
    groups = ["test", "test-extra"]
    install(session, *PACKAGES, groups=groups, extras=True, pip=examples(), torch=torch)


def digest_of(*arguments: str) -> str:
    """Returns a digest of arguments, and of all that decides what an installation is."""
    # Modules by their names alone: an installation in place lists those of native packages.
    names = sorted(str(file) for file in ROOT.glob("packages/*/src/**/*.py"))
    found = hashlib.sha256("\0".join([*arguments, *names]).encode())
    files = [ROOT / "noxfile.py", ROOT / "pyproject.toml"]
    for pattern in ("pyproject.toml", "CMakeLists.txt", "csrc/**/*"):
        files += ROOT.glob(f"packages/*/{pattern}")
    files += ROOT.glob("integration/**/pyproject.toml")
    for file in sorted(file for file in files if file.is_file()):
        found.update(file.read_bytes())
    return found.hexdigest()


def examples() -> list[str]:
    """Returns pip's arguments for the examples, each with the library that it wraps.

    The double of a cluster, which tests and tutorials use, is among them.
    """
    ours = ("integration/kubernetes", "integration/simulated_accelerator")
    arguments = [word for path in ours for word in ("-e", path)]
    for file in sorted(ROOT.glob("integration/examples/*/pyproject.toml")):
        extras = nox.project.load_toml(file)["project"]["optional-dependencies"]
        arguments += ["-e", f"{file.parent.relative_to(ROOT)}[{','.join(extras)}]"]
    return arguments


def folders(*names: str) -> list[str]:
    """Returns those of the given folders that exist in any package."""
    found = [ROOT / "packages" / p / name for p in PACKAGES for name in names]
    return [str(folder.relative_to(ROOT)) for folder in found if folder.is_dir()]


def places(area: str) -> list[str]:
    """Returns where the tests of a package lie, or those of several at a time."""
    if area == "integration":
        found = sorted(ROOT.glob("integration/**/test_*.py"))
        found += sorted(ROOT.glob("integration/**/src"))
    else:
        here = [ROOT / "packages" / area / name for name in ("tests", "src")]
        found = [folder for folder in here if folder.is_dir()]
    return [str(place.relative_to(ROOT)) for place in found]


def marked(*names: str) -> list[str]:
    """Returns the files of tests, of all packages, in which any of the marks stands.

    To read the others only to leave them out takes longer than many tests.
    """
    files = [file for f in folders("tests") for file in (ROOT / f).rglob("test_*.py")]
    files += ROOT.glob("integration/**/test_*.py")
    return [
        str(file.relative_to(ROOT))
        for file in sorted(files)
        if any(f"mark.{name}" in file.read_text("utf-8") for name in names)
    ]


def interpret(session: nox.Session, *pytest_options: str) -> None:
    """Runs the tests of GPU kernels in a process whose Triton interprets them."""
    select = ["-m", "interpreter", *pytest_options, *marked("interpreter")]
    # Triton is for Linux; options may leave no test.
    codes = [0] if sys.platform == "linux" and not pytest_options else [0, 5]
    env = {"TRITON_INTERPRET": "1"}
    session.run(*PYTEST, *SIDE_BY_SIDE, *select, env=env, success_codes=codes)


def simulate(session: nox.Session, *pytest_options: str) -> None:
    """Runs the tests that need an accelerator on the simulated one."""
    env = {"SIMULATED_ACCELERATOR": "1"}
    files = marked("simulated_accelerator")
    session.run(*PYTEST, *SIDE_BY_SIDE, *pytest_options, *files, env=env)


def run_tests(session: nox.Session) -> None:
    """Runs the tests that a session's arguments name; all but the slow ones without."""
    # What takes longest begins first.
    areas = sorted([*PACKAGES, "integration"], key=lambda name: name not in _LONG)
    slow = "slow" in session.posargs
    given = [word for word in session.posargs if word not in {*areas, "slow"}]
    paths = [word for word in given if "/" in word and not word.startswith("-")]
    paths = [word for word in paths if Path(word.partition("::")[0]).exists()]
    options = [word for word in given if word not in paths]
    files = [os.path.normpath(word) for word in paths]
    asked = [name for name in areas if name in session.posargs]
    values = {b for a, b in pairwise(given) if a.startswith("-")}
    for word in options:
        if not word.startswith("-") and word not in values:
            session.error(f"no file from here: {word}; packages: {', '.join(areas)}")
    asked = asked if asked or files else areas
    where = [*(place for name in asked for place in places(name)), *files]
    if slow:
        found = marked("slow")
        named = [word for word in files if word.partition("::")[0] in found]
        where = [f for f in found if f.startswith(tuple(where))] + named
        where = list(dict.fromkeys(where))
        if not where:
            session.error("there are no slow tests in what is named")
    select = ["-m", f"not interpreter and {'' if slow else 'not '}slow"]
    # What each test took is kept: `integration/selection/seconds.py` reads it.
    kind = "slow" if slow else "report" if asked == areas else "part"
    report = Path(session.virtualenv.location, f"{kind}.xml")
    # Files run in the order in which they are named; else those of many tests go first.
    options += ["--no-loadscope-reorder"] if files else []
    select += [f"--junitxml={report}", "-o", "junit_family=xunit1"]
    session.run(*PYTEST, *SIDE_BY_SIDE, "--doctest-modules", *select, *where, *options)
    if slow and asked == areas:
        interpret(session, *options)
    if not slow and asked == areas:
        if "not built" in str(session.run(*SIMULATED, "info", silent=True)):
            session.log("tests on the simulated accelerator: nox -s simulated")
        else:
            simulate(session, "-m", "simulated_accelerator and not slow", *options)
    if not slow:
        session.log("slow tests and interpreted kernels are left out: nox -s slow")


@nox.session
def quickstart(session: nox.Session) -> None:
    """Runs the main job: a plan is found and proven, and a worker killed.

    `-- SCRIPT` does so for a script that calls `accelerate`.
    """
    install(session, "drivetrain", extras=True)
    session.run("drivetrain", "quickstart", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Runs all tests but the slow ones in one environment; `-- core` those of a package.

    Packages are `integration` as well. `-- slow` runs the slow tests instead, and those
    that Triton interprets. Files may be named too, and what else is given goes to pytest.
    """
    install_for_tests(session)
    run_tests(session)


@nox.session
@nox.parametrize("version", [nox.param(one, id=one) for one in OTHER_TORCHES])
def torch(session: nox.Session, version: str) -> None:
    """Runs the tests with another torch; see `tests` for what may be named.

    pip brings a torch with CUDA, of some gigabytes, which runs without a GPU.
    """
    # One of a machine may hold torch at the version that it has.
    session.env["PIP_CONSTRAINT"] = f"{ROOT}/integration/constraints/{version}.txt"
    install_for_tests(session, version)
    run_tests(session)


def require_alone(session: nox.Session) -> None:
    """Refuses to run beside another session that runs tests: nox would skip one of them."""
    asked = {"tests", "quick", "slow"}.intersection(sys.argv)
    if len(asked) > 1 and "--" not in sys.argv:
        session.error(f"call nox once for each of {', '.join(sorted(asked))}")


@nox.session
def simulated(session: nox.Session) -> None:
    """Builds the simulated accelerator, and runs all tests that are for it."""
    install_for_tests(session)
    session.run(*SIMULATED, "build")
    simulate(session, "-m", "simulated_accelerator", *session.posargs)


@nox.session(venv_backend="none")
def slow(session: nox.Session) -> None:
    """Runs what nobody waits for: slow tests, the interpreter's, docs, packages alone."""
    require_alone(session)
    session.notify("tests", ["slow", *session.posargs])
    session.notify("simulated", [])
    session.notify("docs", [])
    for package in PACKAGES:
        session.notify(f"isolated({package})", [])


@nox.session(venv_backend="none")
def quick(session: nox.Session) -> None:
    """Runs the tests that changed files can reach, nearest first, for two minutes.

    `-- --since COMMIT` says from what they differ, `-- FILE...` which have changed.
    """
    require_alone(session)
    choose = [sys.executable, "integration/selection/choose.py", *session.posargs]
    found = str(session.run(*choose, silent=True, stderr=None)).split()
    if found:
        session.notify("tests", found)


@nox.session
@nox.parametrize("package", [nox.param(p, id=p) for p in PACKAGES])
def isolated(session: nox.Session, package: str) -> None:
    """Shows that each package stands alone, with only what it declares.

    Its modules are imported, and the examples in them and in its README run. `-- whole`
    runs all of its tests as well.
    """
    options = [option for option in session.posargs if option != "whole"]
    # Tests are written with `testing`; a package itself needs it nowhere.
    written_with = ["testing"] if options != session.posargs else []
    install(session, package, *written_with, groups=["test"])
    readme = "integration/tests/test_readme_examples.py::test_examples_of_a_page_run"
    where = [f"packages/{package}/src", f"{readme}[packages/{package}/README.md]"]
    if options != session.posargs:
        where.append(f"packages/{package}/tests")
    select = ["--doctest-modules", "-m", "not extra and not integration"]
    session.run(*PYTEST, *SIDE_BY_SIDE, *select, *where, *options)
    # What has passed leaves no environment: those of all packages are gigabytes.
    shutil.rmtree(session.virtualenv.location)


@nox.session
def faults(session: nox.Session) -> None:
    """Tries very many faults: dead processes, broken storage, orders that are missing.

    `-- --json FILE` keeps the table of the storage's.
    """
    install_for_tests(session)
    options = ["--faults-json" if o == "--json" else o for o in session.posargs]
    tests = "packages/checkpoint/tests"
    kills = (f"{tests}/faults", f"{tests}/test_crash.py")
    session.run(*PYTEST, "-m", "faults", *kills, *options)
    others = [file for file in marked("faults") if not file.startswith(kills)]
    session.run(*PYTEST, "-m", "faults", *others)


@nox.session
def schedules(session: nox.Session) -> None:
    """Lives through random schedules of kills, signals, outages and damage of checkpoints.

    `-- --number 1800 --rows FILE [--fresh] [--resume]` says how many, and keeps a row each.
    """
    install_for_tests(session)
    path = {"PYTHONPATH": "packages/checkpoint/tests"}
    session.run("python", "-m", "faults.schedules", *session.posargs, env=path)


@nox.session
def flakes(session: nox.Session) -> None:
    """Runs all tests beside busy loops and shuffled, and 20 times those that wait.

    `-- --json FILE [--resume] [--rounds N]` keeps the table, `--slow` takes slow tests.
    """
    install_for_tests(session)
    session.install("pytest-randomly>=4")
    where = [place for name in [*PACKAGES, "integration"] for place in places(name)]
    which = "slow" if "--slow" in session.posargs else "not slow"
    options = ["-m", f"not interpreter and {which}", *where]
    session.run("python", "integration/flakes/flakes.py", *session.posargs, *options)


@nox.session
def ahead(session: nox.Session) -> None:
    """Compiles all Triton kernels for GPUs that are not here: registers, shared memory.

    `-- [--json FILE] [--table FILE] [CAPABILITY...]` keeps what was found.
    """
    install(session, "kernels", "optim", "testing", groups=["test"], extras=True)
    session.run("python", "integration/gpu/ahead.py", *session.posargs)


@nox.session
def programs(session: nox.Session) -> None:
    """Trains random models over random meshes: the same as one process, or refused.

    `-- elastic` trains them in replicas, and kills workers; `-- collectives` runs programs
    of collectives beside stock Gloo. `-- [WORD] --number 50 --first 0` says how many, and
    from which seed.
    """
    install_for_tests(session)
    files = {
        "elastic": "integration/tests/random_elastic.py",
        "collectives": "packages/comm/benchmarks/programs.py",
    }
    asked = [files[word] for word in session.posargs if word in files]
    options = [word for word in session.posargs if word not in files]
    file, *_ = [*asked, "integration/tests/random_programs.py"]
    session.run("python", file, *options)


@nox.session
def planted(session: nox.Session) -> None:
    """Plants faults, and says which the tests near them find; three minutes each at most.

    `-- --json FILE [--resume]` keeps the table. `-- races` takes waits for a device away.
    """
    install_for_tests(session)
    options = [word for word in session.posargs if word != "races"]
    program = "plant" if options == session.posargs else "races"
    session.run("python", f"integration/selection/{program}.py", *options)


@nox.session
def lint(session: nox.Session) -> None:
    """Checks style and formatting; `-- --fix` repairs what can be repaired."""
    session.install(*group("lint"))
    fix = "--fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []))
    session.run("ruff", "format", *([] if fix else ["--check"]))
    # Which package may import which, and which part of it: as text, nothing is imported.
    sources = os.pathsep.join(folders("src"))
    layers = "integration/rules/layers.toml"
    session.run("lint-imports", "--no-cache", layers, env={"PYTHONPATH": sources})
    # An API server refuses a definition that has a rule which it cannot run.
    session.run("python", "integration/rules/definitions.py")
    found = [ROOT.glob(f"*/*/{f}/**/*.[ch]pp") for f in ("csrc", "tests")]
    native = [str(path) for paths in found for path in paths]
    if native:
        session.install(*group("cpp-lint"))
        check = ["-i"] if fix else ["--dry-run", "--Werror"]
        # By a list, since their names would hide what is wrong.
        names = Path(session.create_tmp(), "native.txt")
        names.write_text("\n".join(native))
        session.run("clang-format", *check, f"--files={names}")


@nox.session
def typing(session: nox.Session) -> None:
    """Checks the types of all packages strictly."""
    # Types are those of the sources: what is compiled is not looked at.
    session.env["SKBUILD_WHEEL_CMAKE"] = "false"
    install(session, *PACKAGES, groups=["typing"], extras=True, pip=examples())
    where = [*folders("src"), "integration/kubernetes/src"]
    where.append("integration/simulated_accelerator/src")
    session.run("python", "-m", "mypy", *where, *session.posargs)


@nox.session
@nox.parametrize("package", [nox.param(p, id=p) for p in PACKAGES])
def bench(session: nox.Session, package: str) -> None:
    """Measures each package against its bars, with its peers installed beside it.

    `-- peers.py` runs that program of the package's benchmarks instead of `bars.py`.
    """
    folder = ROOT / "packages" / package / "benchmarks"
    if not (folder / "bars.py").exists():
        session.skip(f"packages/{package} has no bars")
    install(session, package, "testing", extras=True)
    if (folder / "peers.txt").exists():
        # Without what they require: torch is here, and some ask for much that what is
        # compared does not use. A peers.txt lists all that is needed.
        session.install("--no-deps", "-r", str(folder / "peers.txt"))
    names_program = session.posargs[:1] and session.posargs[0].endswith(".py")
    program = session.posargs if names_program else ["bars.py", *session.posargs]
    session.run("python", str(folder / program[0]), *program[1:])


@nox.session
def searches(session: nox.Session) -> None:
    """Measures what searches find, for hours: `-- [table|pairs] [--resume]`."""
    programs = {"table": "three_minutes.py", "pairs": "ten_pairs.py"}
    asked = [name for name in programs if name in session.posargs] or list(programs)
    options = [each for each in session.posargs if each not in programs]
    install(session, "search", "testing", extras=True)
    for name in asked:
        session.run("python", f"packages/search/benchmarks/{programs[name]}", *options)


@nox.session
def batches(session: nox.Session) -> None:
    """Trains with LAMB at four times the batch, for two hours: `-- [--resume]`."""
    install(session, "optim", pip=["./integration/examples/optimizers[plot]"])
    session.run("python", "-m", "optimizer_examples.large_batch", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Builds the documentation, where a warning is an error, and runs its examples."""
    install(session, *PACKAGES, groups=["docs"], extras=True, pip=examples())
    sphinx = ["python", "-m", "sphinx", "-nWE", "--keep-going", "docs"]
    session.run(*sphinx, "-b", "html", "docs/_build/html", *session.posargs)
    session.run(*sphinx, "-b", "doctest", "docs/_build/doctest", *session.posargs)


@nox.session(reuse_venv=False, python=["3.11", "3.12", "3.13"])
def build(session: nox.Session) -> None:
    """Builds all wheels and sdists, and runs the sdists' tests on the wheels alone.

    `-- core` runs those of a package; what else is given goes to pytest.
    """
    session.install(*group("build"))
    made = ROOT / "dist" / str(session.python)
    shutil.rmtree(made, ignore_errors=True)
    for package in PACKAGES:
        # The wheel is built from the sdist, which proves that the sdist is complete.
        session.run("python", "-m", "build", "-o", str(made), f"packages/{package}")
    for wheel in made.glob("*-linux_*.whl"):
        session.run("auditwheel", "repair", "-w", str(made), str(wheel))
        wheel.unlink()
    needs = [*group("test"), *group("test-extra"), *map(str, third_party(extras=True))]
    session.install(*provide_torch(session, TORCH), *needs)
    session.install("--no-index", "--no-deps", *map(str, made.glob("*.whl")))
    session.run("pip", "check")
    unpacked = Path(session.create_tmp())
    for sdist in made.glob("*.tar.gz"):
        shutil.unpack_archive(sdist, unpacked, filter="data")
    asked = [name for name in session.posargs if name in PACKAGES]
    options = [option for option in session.posargs if option not in PACKAGES]
    for sdist in sorted(unpacked.glob("*/tests")):
        name = sdist.parent.name.rpartition("-")[0].removeprefix("drivetrain_")
        with session.chdir(sdist.parent):
            select = ["-c", str(ROOT / "pyproject.toml"), "--rootdir=.", "tests"]
            select += ["-m", "not gpu and not multigpu and not interpreter"]
            if name in (asked or [name]):
                session.run(*PYTEST, *SIDE_BY_SIDE, *select, *options)


@nox.session
def dev(session: nox.Session) -> None:
    """Makes `.venv`, with every package in place and every tool, to work in."""
    install(session, *PACKAGES, groups=["dev"], extras=True, pip=examples())
    link = ROOT / ".venv"
    link.unlink(missing_ok=True)
    link.symlink_to(session.virtualenv.location, target_is_directory=True)


@nox.session
def minimums(session: nox.Session) -> None:
    """Runs the packages' tests with the oldest versions declared, except for torch.

    The oldest torch stays out: its CPU build is not generally to be had. That bound is
    proven on the GPU machine, which has that version.
    """
    oldest: dict[str, Version] = {}
    for need in third_party(extras=True):
        bounds = [Version(s.version) for s in need.specifier if s.operator == ">="]
        oldest[need.name] = max([*bounds, oldest.get(need.name, Version("0"))])
    del oldest["torch"]
    file = Path(session.create_tmp(), "oldest.txt")
    file.write_text("".join(f"{name}=={oldest[name]}\n" for name in sorted(oldest)))
    # Compiled here, since old versions may warn when they are, which fails a test.
    pip = ["--constraint", str(file), "--compile", "-e", "integration/kubernetes"]
    install(session, *PACKAGES, groups=["test"], extras=True, pip=pip)
    # Of each other, the oldest and the newest versions warn that they are outdated.
    calm = ["-W", "ignore::DeprecationWarning"]
    select = ["-m", "not interpreter", *folders("tests")]
    select.append("integration/kubernetes/tests")
    session.run(*PYTEST, *calm, *select, *session.posargs)
    interpret(session, *calm)


@nox.session
def gpu(session: nox.Session) -> None:
    """Gathers the wheels that `integration/gpu/run.py` needs, offline, elsewhere."""
    target = ROOT / "integration" / "gpu" / "dist"
    shutil.rmtree(target, ignore_errors=True)
    session.install(*group("build"))
    native: set[str] = set()
    for package, content in PACKAGES.items():
        # A native package travels as source, and is compiled where it runs.
        if content["build-system"]["build-backend"].startswith("hatchling"):
            session.run("python", "-m", "build", "-wo", target, f"packages/{package}")
        else:
            native.update(content["build-system"]["requires"])
    # The machine has torch and numpy; the rest is small, and may be missing or old there.
    there = {"torch", "numpy"}
    needs = {str(r) for r in third_party(extras=False) if r.name not in there}
    needs.update(group("test"))
    needs.update(native)
    platforms = [f"manylinux_2_{n}_x86_64" for n in (28, 27, 17, 12, 5)]
    select = [f"--platform={p}" for p in [*platforms, "manylinux2014_x86_64"]]
    select += ["--only-binary=:all:", "--python-version=3.12", "--implementation=cp"]
    session.run("pip", "download", *select, "-d", target, *sorted(needs))
    peers = ROOT / "packages" / "kernels" / "benchmarks" / "peers.txt"
    session.run("pip", "download", *select, "--no-deps", "-d", target, "-r", str(peers))
    git = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    commit = str(session.run(*git, external=True, silent=True)).strip()
    (target / "commit.txt").write_text(f"{commit}\n")
